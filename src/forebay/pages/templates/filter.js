// Typing into an `input.filter` hides the `.card`s without that text.
for (const box of document.querySelectorAll("input.filter")) {
  box.addEventListener("input", () => {
    const word = box.value.toLowerCase();
    for (const card of document.querySelectorAll(".card")) {
      card.hidden = !card.textContent.toLowerCase().includes(word);
    }
  });
}
