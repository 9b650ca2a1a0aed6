package dev.leasehold.internal;

import dev.leasehold.v1.LockRef;
import dev.leasehold.v1.LockTarget;

/** Namespace and name of a lock, with the default namespace filled in. */
public record LockName(String namespace, String name) {
    /** Returns the lock of a target. */
    public static LockName of(LockTarget target) {
        String namespace = target.getNamespace();
        return new LockName(namespace.isEmpty() ? "default" : namespace, target.getName());
    }

    /** Parses {@code namespace/name}; a namespace contains no slash. */
    public static LockName parse(String text) {
        int slash = text.indexOf('/');
        return new LockName(text.substring(0, slash), text.substring(slash + 1));
    }

    LockRef toProto() {
        return LockRef.newBuilder().setNamespace(namespace).setName(name).build();
    }

    @Override
    public String toString() {
        return namespace + "/" + name;
    }
}
