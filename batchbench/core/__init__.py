"""Small tools that every other package uses: files, money, time, keys, safe text."""
