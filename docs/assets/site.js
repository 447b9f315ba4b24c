// What the theme does not do for those who hear a page, or use a keyboard alone. The button that copies
// a block of code lies in a <nav> without a name, one a block: they would be landmarks that all sound
// alike. And a block that is wider than the page must take the focus, so that arrow keys can move it.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) {
    nav.setAttribute("role", "none");
  }
  for (const code of document.querySelectorAll("pre > code:not([tabindex])")) {
    code.setAttribute("tabindex", "0");
  }
}).observe(document.documentElement, {
  attributeFilter: ["tabindex"],
  childList: true,
  subtree: true,
});
