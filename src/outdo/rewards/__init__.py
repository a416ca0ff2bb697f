"""Where rewards come from: graders, their composition, and the audit."""
