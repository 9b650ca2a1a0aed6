package dev.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.rpc.ErrorInfo;
import dev.leasehold.support.Broker;
import dev.leasehold.v1.AcquireRequest;
import dev.leasehold.v1.Contention;
import dev.leasehold.v1.LockServiceGrpc;
import dev.leasehold.v1.LockTarget;
import dev.leasehold.v1.Owner;
import dev.leasehold.v1.ReleaseRequest;
import dev.leasehold.v1.RenewRequest;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.UUID;
import org.junit.jupiter.api.Test;

/** Tests of the generated stubs without the client, and of the details in the status of a rejected call. */
class RawStubsTest {
    private static AcquireRequest request(String owner) {
        return AcquireRequest.newBuilder()
                .setTarget(LockTarget.newBuilder().setName("a"))
                .setOwner(Owner.newBuilder().setId(owner).setReason("by hand"))
                .setRequestId(UUID.randomUUID().toString())
                .setTtl(Duration.newBuilder().setSeconds(5))
                .build();
    }

    @Test
    void aRejectionCarriesItsReasonAndTheHolder() throws Exception {
        try (Broker broker = Broker.start()) {
            ManagedChannel channel = Grpc.newChannelBuilder(broker.address(), InsecureChannelCredentials.create())
                    .build();
            LockServiceGrpc.LockServiceBlockingStub locks = LockServiceGrpc.newBlockingStub(channel);
            AcquireRequest request = request("one");
            dev.leasehold.v1.Lease lease = locks.acquire(request).getLease();
            assertEquals(
                    lease.getLeaseId(),
                    locks.acquire(request).getLease().getLeaseId(),
                    "a repeated request returns the same lease");
            StatusRuntimeException rejection =
                    assertThrows(StatusRuntimeException.class, () -> locks.acquire(request("other")));
            assertEquals(Status.Code.ABORTED, rejection.getStatus().getCode());
            com.google.rpc.Status status = StatusProto.fromThrowable(rejection);
            String reason = null;
            String owner = null;
            for (Any detail : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    reason = detail.unpack(ErrorInfo.class).getReason();
                } else if (detail.is(Contention.class)) {
                    owner = detail.unpack(Contention.class)
                            .getHolders(0)
                            .getOwner()
                            .getId();
                }
            }
            assertEquals("LOCK_HELD", reason);
            assertEquals("one", owner);
            locks.renew(RenewRequest.newBuilder().setLease(lease).build());
            locks.release(ReleaseRequest.newBuilder().setLease(lease).build());
            locks.acquire(request("other"));
            channel.shutdownNow();
        }
    }
}
