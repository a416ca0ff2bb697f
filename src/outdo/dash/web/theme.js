// Dark or light before the first paint: what the reader chose here, else what the system says.
(() => {
  const wanted = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = wanted() ?? (dark.matches ? "dark" : "light");
    document.dispatchEvent(new Event("theme"));
  };
  dark.addEventListener("change", apply);
  apply();
})();
