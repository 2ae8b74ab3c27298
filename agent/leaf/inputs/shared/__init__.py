"""What several inputs need: options, templates of names, submitting until stored."""
