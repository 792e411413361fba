"""How texts say things: the words that the careful readings of emails and of profiles look for."""
