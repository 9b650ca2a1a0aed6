package dev.leasehold.internal;

import dev.leasehold.error.InvalidCredentialException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Source of the credential: a fixed token, or the current content of a file. The credential is never logged. */
public final class CredentialSource {
    private final String token;
    private final Path file;

    /** Validates the credential. Both arguments may be null; the file has precedence over the token. */
    public CredentialSource(String token, Path file) {
        this.token = token;
        this.file = file;
        authorization();
    }

    /** Returns the value of the header {@code authorization}, or null without a credential. */
    String authorization() {
        String credential = token;
        if (file != null) {
            try {
                credential = Files.readString(file).strip();
            } catch (IOException e) {
                throw new InvalidCredentialException(e.toString());
            }
        }
        if (credential == null) {
            return null;
        }
        if (!credential.chars().allMatch(character -> character >= ' ' && character <= '~')) {
            throw new InvalidCredentialException();
        }
        return "Bearer " + credential;
    }
}
