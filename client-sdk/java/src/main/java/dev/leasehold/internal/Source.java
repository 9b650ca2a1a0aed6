package dev.leasehold.internal;

import dev.leasehold.error.InvalidCredentialException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Where the credential comes from: always the same, or whatever is in a file now. It is in no log. */
public final class Source {
    private final String token;
    private final Path file;

    /** Checks it. Both may be null; the file goes before the token. */
    public Source(String token, Path file) {
        this.token = token;
        this.file = file;
        now();
    }

    /** As it stands in the header, or null if nothing is shown. */
    String now() {
        String shown = token;
        if (file != null) {
            try {
                shown = Files.readString(file).strip();
            } catch (IOException e) {
                throw new InvalidCredentialException(e.toString());
            }
        }
        if (shown == null) {
            return null;
        }
        if (!shown.chars().allMatch(one -> one >= ' ' && one <= '~')) {
            throw new InvalidCredentialException();
        }
        return "Bearer " + shown;
    }
}
