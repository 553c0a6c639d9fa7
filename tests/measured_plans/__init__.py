"""Plans that an exported module makes by timing."""
