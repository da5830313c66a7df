// A new password that somebody else chooses: typed, or drawn, and then to be handed over.

import { copyButton } from "../../base/copy.js";
import { h } from "../../base/dom.js";
import { field, input } from "../../base/form.js";
import { t } from "../../base/texts.js";

const NUM_CHARACTERS = 20; // of 32: 100 bits
const CHARACTERS = "abcdefghijkmnpqrstuvwxyz23456789"; // none that is taken for another

export function drawPassword() {
  const drawn = crypto.getRandomValues(new Uint8Array(NUM_CHARACTERS));
  return Array.from(drawn, (value) => CHARACTERS[value % CHARACTERS.length]).join("");
}

/** @returns {Node[]} */
export function newPassword() {
  const control = input("password", { required: true, minlength: 12, autocomplete: "new-password" });
  const draw = h(
    "button",
    { type: "button", class: "small", onclick: () => (control.value = drawPassword()) },
    t("users.draw_password"),
  );
  return [
    field(t("users.password"), control, t("users.password_help")),
    h(
      "p",
      { class: "row" },
      draw,
      copyButton(() => control.value, t("base.copy")),
    ),
  ];
}
