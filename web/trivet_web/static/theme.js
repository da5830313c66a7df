// Runs before the first paint, so that a chosen theme does not flash. A classic script: modules run later.
(() => {
  const chosen = localStorage.getItem("trivet-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
