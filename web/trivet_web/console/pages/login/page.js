// Lets a password be seen; without this the form works all the same.

for (const label of document.querySelectorAll("#show-password")) {
  const box = /** @type {HTMLInputElement} */ (label.querySelector("input"));
  /** @type {HTMLElement} */ (label).hidden = false;
  box.addEventListener("change", () => {
    for (const field of document.querySelectorAll("input[name=password], input[name=again]")) {
      /** @type {HTMLInputElement} */ (field).type = box.checked ? "text" : "password";
    }
  });
}
