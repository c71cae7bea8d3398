"""Scripts for developers; not part of the installed packages."""
