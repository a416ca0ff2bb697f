// Dark or light before the first paint: the stored choice, else the system's.
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
