"""What a mode of a server costs there: two servers, or one started without it, with it and without it again, by turns."""
