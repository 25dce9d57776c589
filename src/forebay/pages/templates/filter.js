// Typing into an `input.filter` hides the `.card`s of its section without that text.
const applyFilter = (box) => {
  const word = box.value.toLowerCase();
  for (const card of (box.closest("section") || document).querySelectorAll(".card")) {
    card.hidden = !card.textContent.toLowerCase().includes(word);
  }
};
document.addEventListener("input", (event) => {
  if (event.target.matches("input.filter")) applyFilter(event.target);
});
