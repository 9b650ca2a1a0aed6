package main

import (
	"context"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.uber.org/zap"
	"google.golang.org/grpc/status"
)

// callersEach is the number of callers that share a connection. etcd allows at least as many streams on one HTTP/2
// connection.
const callersEach = 100

// leaseTTL is the TTL of a lease in seconds, equal to Leasehold's default.
const leaseTTL = 10

type etcdLocker struct {
	locks v3lockpb.LockClient
	lease clientv3.LeaseID
	key   []byte
}

// etcd opens callers of etcd's Lock service, each with a lease that the client renews.
func etcd(endpoint string) opener {
	var mutex sync.Mutex
	clients := map[int]*clientv3.Client{}
	connected := func(number int) (*clientv3.Client, error) {
		mutex.Lock()
		defer mutex.Unlock()
		if clients[number] == nil {
			// The logger is disabled because the client logs the errors that it also returns.
			client, err := clientv3.New(clientv3.Config{
				Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
			})
			if err != nil {
				return nil, err
			}
			clients[number] = client
		}
		return clients[number], nil
	}
	return func(caller int) (locker, error) {
		client, err := connected(caller / callersEach)
		if err != nil {
			return nil, err
		}
		ctx := context.Background()
		lease, err := client.Grant(ctx, leaseTTL)
		if err != nil {
			return nil, err
		}
		alive, err := client.KeepAlive(ctx, lease.ID)
		if err != nil {
			return nil, err
		}
		go func() {
			for range alive {
			}
		}()
		return &etcdLocker{locks: v3lockpb.NewLockClient(client.ActiveConnection()), lease: lease.ID}, nil
	}
}

func (l *etcdLocker) lock(ctx context.Context, name string) error {
	for {
		answer, err := l.locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(name), Lease: int64(l.lease)})
		if err == nil {
			l.key = answer.Key
			return nil
		}
		// etcd rejects more than some thousands of concurrent requests with this message, under various codes. Its clients
		// retry.
		if !strings.Contains(status.Convert(err).Message(), "too many requests") {
			return err
		}
		time.Sleep(25 * time.Millisecond)
	}
}

func (l *etcdLocker) unlock(ctx context.Context) error {
	_, err := l.locks.Unlock(ctx, &v3lockpb.UnlockRequest{Key: l.key})
	return err
}
