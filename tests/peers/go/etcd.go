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

// callersEach is how many callers share a connection: one HTTP/2 connection of etcd takes so many streams at least.
const callersEach = 100

// leaseTTL in seconds: as Leasehold's default ttl.
const leaseTTL = 10

type etcdLocker struct {
	locks v3lockpb.LockClient
	lease clientv3.LeaseID
	key   []byte
}

// etcd is the Lock service of the server, with a lease of each caller's that the client keeps alive.
func etcd(endpoint string) opener {
	var mutex sync.Mutex
	clients := map[int]*clientv3.Client{}
	connected := func(number int) (*clientv3.Client, error) {
		mutex.Lock()
		defer mutex.Unlock()
		if clients[number] == nil {
			// It logs what it also returns, at length.
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
		// What etcd says beyond some thousands at once, by whichever code. Its clients try again.
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
