// Many callers of two clients want few locks while connections are cut and brokers are killed: nobody is inside
// together with somebody else, and tokens rise.

package leasehold_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/clock"
	"leasehold.dev/sdk/internal/testbed"
)

const (
	locksWanted = 3
	callers     = 12
	// contest is how long it lasts at least, and contestMax at most if too little has happened until then.
	contest    = 10 * time.Second
	contestMax = 30 * time.Second
	visitsMin  = 50
	// patience is for what a contest leaves behind where a connection broke at the moment of a cancel or a release: a
	// lease for its time, then a place in line for 6 s, and a hand-off to a broker that was killed for 3 s.
	patience = 15 * time.Second
)

// visit is a time in which somebody relied on a lock.
type visit struct {
	lock           int
	token          int64
	entered, ended time.Duration
}

// witness sees every visit.
type witness struct {
	mu     sync.Mutex
	visits []visit
}

func (w *witness) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.visits)
}

func (w *witness) saw(one visit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.visits = append(w.visits, one)
}

// verdict is how many visits overlap the one before, and how many have a token that is not larger.
func (w *witness) verdict() (overlaps, regressions int) {
	slices.SortFunc(w.visits, func(one, other visit) int {
		return cmp.Or(cmp.Compare(one.lock, other.lock), cmp.Compare(one.entered, other.entered))
	})
	for i := 1; i < len(w.visits); i++ {
		before, after := w.visits[i-1], w.visits[i]
		if before.lock != after.lock {
			continue
		}
		if after.entered < before.ended {
			overlaps++
		}
		if after.token <= before.token {
			regressions++
		}
	}
	return overlaps, regressions
}

func TestTheWitnessSeesWhatIsWrong(t *testing.T) {
	w := &witness{visits: []visit{{0, 1, 0, 2}, {0, 2, 1, 3}, {0, 2, 4, 5}, {1, 1, 0, 9}}}
	overlaps, regressions := w.verdict()
	is(t, overlaps == 1 && regressions == 1, "%d, %d", overlaps, regressions)
}

func TestNobodyIsInsideTogether(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	proxies := []*testbed.Proxy{startProxy(t, brokers[0]), startProxy(t, brokers[1])}
	clients := []*leasehold.Client{
		clientOf(t, proxies[0].URL()+","+proxies[1].URL()), clientOf(t, proxies[1].URL()+","+proxies[0].URL()),
	}
	w, begun := &witness{}, clock.Now()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := w.visit(t.Context(), clients[caller%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	cuts, kills := 0, 0
	isOver := func() bool {
		passed := clock.Now() - begun
		return passed > contestMax || passed > contest && kills > 0 && w.count() >= visitsMin
	}
	for !isOver() {
		time.Sleep(300*time.Millisecond + rand.N(500*time.Millisecond))
		cuts += proxies[rand.N(2)].Cut()
		if rand.N(10) < 3 {
			kills++
			ok(t, brokers[rand.N(2)].Restart())
		}
	}
	end()
	all.Wait()
	overlaps, regressions := w.verdict()
	t.Logf("visits=%d cuts=%d kills=%d overlaps=%d regressions=%d", len(w.visits), cuts, kills, overlaps, regressions)
	is(t, cuts > 0 && kills > 0 && len(w.visits) >= visitsMin, "too little has happened")
	is(t, overlaps == 0 && regressions == 0, "%d overlaps, %d regressions", overlaps, regressions)
	for number := range locksWanted {
		release(t, lock(t, clients[0], fmt.Sprint(number), leasehold.WithWait(patience)))
	}
}

// visit takes a lock and relies on it for a while. Some calls are given up.
func (w *witness) visit(ctx context.Context, client *leasehold.Client) error {
	ctx, cancel := context.WithTimeout(ctx, rand.N(5*time.Second))
	defer cancel()
	number := rand.N(locksWanted)
	lease, err := client.Lock(ctx, fmt.Sprint(number), leasehold.WithTTL(3*time.Second))
	if err == nil {
		one := visit{lock: number, token: lease.FencingToken(), entered: clock.Now()}
		stay := one.entered + rand.N(50*time.Millisecond)
		for one.ended = one.entered; one.ended < stay; time.Sleep(time.Millisecond) {
			now := clock.Now()
			if !lease.IsValid() {
				break
			}
			one.ended = now
		}
		w.saw(one)
		err = lease.Release(context.WithoutCancel(ctx))
	}
	for _, expected := range []error{
		context.DeadlineExceeded, leasehold.ErrUnavailable, leasehold.ErrLeaseLost, leasehold.ErrUnconfirmed,
	} {
		if errors.Is(err, expected) {
			return nil
		}
	}
	return err
}
