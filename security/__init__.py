"""Who may come in and what they may do: decisions and cryptography, without IO."""
