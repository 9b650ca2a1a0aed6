package dev.leasehold.v1;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * Takes locks away.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class AdminServiceGrpc {

  private AdminServiceGrpc() {}

  public static final java.lang.String SERVICE_NAME = "leasehold.v1.AdminService";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.ForceReleaseLeaseRequest,
      dev.leasehold.v1.ForceReleaseLeaseResponse> getForceReleaseLeaseMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "ForceReleaseLease",
      requestType = dev.leasehold.v1.ForceReleaseLeaseRequest.class,
      responseType = dev.leasehold.v1.ForceReleaseLeaseResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.ForceReleaseLeaseRequest,
      dev.leasehold.v1.ForceReleaseLeaseResponse> getForceReleaseLeaseMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.ForceReleaseLeaseRequest, dev.leasehold.v1.ForceReleaseLeaseResponse> getForceReleaseLeaseMethod;
    if ((getForceReleaseLeaseMethod = AdminServiceGrpc.getForceReleaseLeaseMethod) == null) {
      synchronized (AdminServiceGrpc.class) {
        if ((getForceReleaseLeaseMethod = AdminServiceGrpc.getForceReleaseLeaseMethod) == null) {
          AdminServiceGrpc.getForceReleaseLeaseMethod = getForceReleaseLeaseMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.ForceReleaseLeaseRequest, dev.leasehold.v1.ForceReleaseLeaseResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "ForceReleaseLease"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.ForceReleaseLeaseRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.ForceReleaseLeaseResponse.getDefaultInstance()))
              .setSchemaDescriptor(new AdminServiceMethodDescriptorSupplier("ForceReleaseLease"))
              .build();
        }
      }
    }
    return getForceReleaseLeaseMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.SetLockLimitRequest,
      dev.leasehold.v1.SetLockLimitResponse> getSetLockLimitMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "SetLockLimit",
      requestType = dev.leasehold.v1.SetLockLimitRequest.class,
      responseType = dev.leasehold.v1.SetLockLimitResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.SetLockLimitRequest,
      dev.leasehold.v1.SetLockLimitResponse> getSetLockLimitMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.SetLockLimitRequest, dev.leasehold.v1.SetLockLimitResponse> getSetLockLimitMethod;
    if ((getSetLockLimitMethod = AdminServiceGrpc.getSetLockLimitMethod) == null) {
      synchronized (AdminServiceGrpc.class) {
        if ((getSetLockLimitMethod = AdminServiceGrpc.getSetLockLimitMethod) == null) {
          AdminServiceGrpc.getSetLockLimitMethod = getSetLockLimitMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.SetLockLimitRequest, dev.leasehold.v1.SetLockLimitResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "SetLockLimit"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.SetLockLimitRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.SetLockLimitResponse.getDefaultInstance()))
              .setSchemaDescriptor(new AdminServiceMethodDescriptorSupplier("SetLockLimit"))
              .build();
        }
      }
    }
    return getSetLockLimitMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static AdminServiceStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<AdminServiceStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<AdminServiceStub>() {
        @java.lang.Override
        public AdminServiceStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new AdminServiceStub(channel, callOptions);
        }
      };
    return AdminServiceStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static AdminServiceBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<AdminServiceBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<AdminServiceBlockingV2Stub>() {
        @java.lang.Override
        public AdminServiceBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new AdminServiceBlockingV2Stub(channel, callOptions);
        }
      };
    return AdminServiceBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static AdminServiceBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<AdminServiceBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<AdminServiceBlockingStub>() {
        @java.lang.Override
        public AdminServiceBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new AdminServiceBlockingStub(channel, callOptions);
        }
      };
    return AdminServiceBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static AdminServiceFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<AdminServiceFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<AdminServiceFutureStub>() {
        @java.lang.Override
        public AdminServiceFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new AdminServiceFutureStub(channel, callOptions);
        }
      };
    return AdminServiceFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * Takes locks away.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * Ends a lease that is not the caller's.
     * </pre>
     */
    default void forceReleaseLease(dev.leasehold.v1.ForceReleaseLeaseRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.ForceReleaseLeaseResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getForceReleaseLeaseMethod(), responseObserver);
    }

    /**
     * <pre>
     * Changes the limit of a semaphore. It stays in the record and overrides what
     * callers send. Shrinking stops grants until enough permits have come back;
     * waiters that want more than the new limit are refused LIMIT_MISMATCH.
     * </pre>
     */
    default void setLockLimit(dev.leasehold.v1.SetLockLimitRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.SetLockLimitResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getSetLockLimitMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service AdminService.
   * <pre>
   * Takes locks away.
   * </pre>
   */
  public static abstract class AdminServiceImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return AdminServiceGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service AdminService.
   * <pre>
   * Takes locks away.
   * </pre>
   */
  public static final class AdminServiceStub
      extends io.grpc.stub.AbstractAsyncStub<AdminServiceStub> {
    private AdminServiceStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected AdminServiceStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new AdminServiceStub(channel, callOptions);
    }

    /**
     * <pre>
     * Ends a lease that is not the caller's.
     * </pre>
     */
    public void forceReleaseLease(dev.leasehold.v1.ForceReleaseLeaseRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.ForceReleaseLeaseResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getForceReleaseLeaseMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Changes the limit of a semaphore. It stays in the record and overrides what
     * callers send. Shrinking stops grants until enough permits have come back;
     * waiters that want more than the new limit are refused LIMIT_MISMATCH.
     * </pre>
     */
    public void setLockLimit(dev.leasehold.v1.SetLockLimitRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.SetLockLimitResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getSetLockLimitMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service AdminService.
   * <pre>
   * Takes locks away.
   * </pre>
   */
  public static final class AdminServiceBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<AdminServiceBlockingV2Stub> {
    private AdminServiceBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected AdminServiceBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new AdminServiceBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * Ends a lease that is not the caller's.
     * </pre>
     */
    public dev.leasehold.v1.ForceReleaseLeaseResponse forceReleaseLease(dev.leasehold.v1.ForceReleaseLeaseRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getForceReleaseLeaseMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Changes the limit of a semaphore. It stays in the record and overrides what
     * callers send. Shrinking stops grants until enough permits have come back;
     * waiters that want more than the new limit are refused LIMIT_MISMATCH.
     * </pre>
     */
    public dev.leasehold.v1.SetLockLimitResponse setLockLimit(dev.leasehold.v1.SetLockLimitRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getSetLockLimitMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service AdminService.
   * <pre>
   * Takes locks away.
   * </pre>
   */
  public static final class AdminServiceBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<AdminServiceBlockingStub> {
    private AdminServiceBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected AdminServiceBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new AdminServiceBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * Ends a lease that is not the caller's.
     * </pre>
     */
    public dev.leasehold.v1.ForceReleaseLeaseResponse forceReleaseLease(dev.leasehold.v1.ForceReleaseLeaseRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getForceReleaseLeaseMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Changes the limit of a semaphore. It stays in the record and overrides what
     * callers send. Shrinking stops grants until enough permits have come back;
     * waiters that want more than the new limit are refused LIMIT_MISMATCH.
     * </pre>
     */
    public dev.leasehold.v1.SetLockLimitResponse setLockLimit(dev.leasehold.v1.SetLockLimitRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getSetLockLimitMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service AdminService.
   * <pre>
   * Takes locks away.
   * </pre>
   */
  public static final class AdminServiceFutureStub
      extends io.grpc.stub.AbstractFutureStub<AdminServiceFutureStub> {
    private AdminServiceFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected AdminServiceFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new AdminServiceFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * Ends a lease that is not the caller's.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.ForceReleaseLeaseResponse> forceReleaseLease(
        dev.leasehold.v1.ForceReleaseLeaseRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getForceReleaseLeaseMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Changes the limit of a semaphore. It stays in the record and overrides what
     * callers send. Shrinking stops grants until enough permits have come back;
     * waiters that want more than the new limit are refused LIMIT_MISMATCH.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.SetLockLimitResponse> setLockLimit(
        dev.leasehold.v1.SetLockLimitRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getSetLockLimitMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_FORCE_RELEASE_LEASE = 0;
  private static final int METHODID_SET_LOCK_LIMIT = 1;

  private static final class MethodHandlers<Req, Resp> implements
      io.grpc.stub.ServerCalls.UnaryMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ServerStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ClientStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.BidiStreamingMethod<Req, Resp> {
    private final AsyncService serviceImpl;
    private final int methodId;

    MethodHandlers(AsyncService serviceImpl, int methodId) {
      this.serviceImpl = serviceImpl;
      this.methodId = methodId;
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public void invoke(Req request, io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_FORCE_RELEASE_LEASE:
          serviceImpl.forceReleaseLease((dev.leasehold.v1.ForceReleaseLeaseRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.ForceReleaseLeaseResponse>) responseObserver);
          break;
        case METHODID_SET_LOCK_LIMIT:
          serviceImpl.setLockLimit((dev.leasehold.v1.SetLockLimitRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.SetLockLimitResponse>) responseObserver);
          break;
        default:
          throw new AssertionError();
      }
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public io.grpc.stub.StreamObserver<Req> invoke(
        io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getForceReleaseLeaseMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.ForceReleaseLeaseRequest,
              dev.leasehold.v1.ForceReleaseLeaseResponse>(
                service, METHODID_FORCE_RELEASE_LEASE)))
        .addMethod(
          getSetLockLimitMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.SetLockLimitRequest,
              dev.leasehold.v1.SetLockLimitResponse>(
                service, METHODID_SET_LOCK_LIMIT)))
        .build();
  }

  private static abstract class AdminServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    AdminServiceBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return dev.leasehold.v1.AdminServiceProto.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("AdminService");
    }
  }

  private static final class AdminServiceFileDescriptorSupplier
      extends AdminServiceBaseDescriptorSupplier {
    AdminServiceFileDescriptorSupplier() {}
  }

  private static final class AdminServiceMethodDescriptorSupplier
      extends AdminServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    AdminServiceMethodDescriptorSupplier(java.lang.String methodName) {
      this.methodName = methodName;
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.MethodDescriptor getMethodDescriptor() {
      return getServiceDescriptor().findMethodByName(methodName);
    }
  }

  private static volatile io.grpc.ServiceDescriptor serviceDescriptor;

  public static io.grpc.ServiceDescriptor getServiceDescriptor() {
    io.grpc.ServiceDescriptor result = serviceDescriptor;
    if (result == null) {
      synchronized (AdminServiceGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new AdminServiceFileDescriptorSupplier())
              .addMethod(getForceReleaseLeaseMethod())
              .addMethod(getSetLockLimitMethod())
              .build();
        }
      }
    }
    return result;
  }
}
