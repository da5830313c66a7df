// A conversation that was gone on with in several ways: a message has the others that stand in its place, each
// with what followed it, so that going back loses nothing.

/**
 * @typedef {import("./column.js").Message} Message
 * @typedef {{message: Message, tail: Message[]}} Branch
 */

/**
 * Take a message and all behind it away, to go on otherwise from there.
 *
 * @param {Message[]} messages
 * @param {number} index
 * @returns {{before: Message[], others: Branch[]}} `others` is for the message that comes in its place
 */
export function cutAt(messages, index) {
  const [old, ...tail] = messages.slice(index);
  return { before: messages.slice(0, index), others: old ? branchesOf(old, tail) : [] };
}

/** @param {Message} message @param {Branch[]} others it comes behind them @returns {Message} */
export const instead = (message, others) => (others.length ? { ...message, others, place: others.length } : message);

/** How many there are in this place. @param {Message} message */
export const numBranches = (message) => (message.others?.length ?? 0) + 1;

/** @param {Message[]} messages @param {number} index @param {number} place from 0 @returns {Message[]} */
export function switchTo(messages, index, place) {
  const [old, ...tail] = messages.slice(index);
  const all = branchesOf(old, tail);
  const chosen = all[place];
  if (!chosen) return messages;
  const message = { ...chosen.message, others: all.filter((one) => one !== chosen), place };
  return [...messages.slice(0, index), message, ...chosen.tail];
}

/** All that stand in one place, in the order in which they came. @param {Message} old @param {Message[]} tail @returns {Branch[]} */
function branchesOf(old, tail) {
  const { others = [], place = 0, ...message } = old;
  return [...others.slice(0, place), { message, tail }, ...others.slice(place)];
}
