"""The five papers' numbers beside ours, and which of their claims hold: QPD's and four systems'."""
