package dev.leasehold.internal;

import dev.leasehold.v1.LockRef;
import dev.leasehold.v1.LockTarget;

/** A lock, with the default namespace filled in. */
public record LockName(String namespace, String name) {
    /** The lock of a target. */
    public static LockName of(LockTarget target) {
        String namespace = target.getNamespace();
        return new LockName(namespace.isEmpty() ? "default" : namespace, target.getName());
    }

    /** The lock of {@code namespace/name}; a namespace has no slash. */
    public static LockName parse(String shown) {
        int slash = shown.indexOf('/');
        return new LockName(shown.substring(0, slash), shown.substring(slash + 1));
    }

    LockRef proto() {
        return LockRef.newBuilder().setNamespace(namespace).setName(name).build();
    }

    @Override
    public String toString() {
        return namespace + "/" + name;
    }
}
