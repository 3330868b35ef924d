package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// catchUp lets the program read the feed, and checks how many events were missing.
func (r *run) catchUp(want int) {
	if r.err != nil {
		return
	}
	missing, err := r.program.catchUp(r.ctx)
	r.fail(err)
	if missing != want {
		r.failf("%d events were missing, not %d", missing, want)
	}
}

// refusesToCatchUp checks that reading the feed fails.
func (r *run) refusesToCatchUp() {
	if r.err != nil {
		return
	}
	if missing, err := r.program.catchUp(r.ctx); err == nil {
		r.failf("POST /catchup was answered with %d, although work fails", missing)
	}
}

func feeding() []testCase {
	return []testCase{
		{"the feed has nothing new", func(r *run) {
			r.catchUp(0)
			r.catchUp(0)
		}},
		{"an event that is only in the feed", func(r *run) {
			events := r.events(3)
			r.deliver(events[1], http.StatusNoContent)
			r.catchUp(2)
			r.deliver(events[0], http.StatusNoContent)
			r.inOrder(events[1], events[0], events[2])
			r.worked(events...)
		}},
		{"a feed of many pages, with work that fails in the middle", func(r *run) {
			r.daemon.change(func(d *daemon) { d.pageSize = 10 })
			before := r.events(24)
			failing := r.event(`{"fail":true}`)
			after := r.events(30)
			r.refusesToCatchUp()
			r.worked(before...)
			r.never(failing)
			r.never(after...)
			r.refusesToCatchUp()
			r.never(after...)
			r.catchUp(31)
			r.inOrder(slices.Concat(before, []*event{failing}, after)...)
		}},
		{"an event of the feed without a body", func(r *run) {
			events := r.events(3)
			r.daemon.change(func(*daemon) { events[1].gone = true })
			r.catchUp(2)
			r.worked(events[0], events[2])
			r.never(events[1])
		}},
		{"a feed that is not available for a while", func(r *run) {
			r.daemon.change(func(d *daemon) { d.pageSize, d.feedGone = 2, 2 })
			events := r.events(5)
			missing, err := 0, error(nil)
			for range 3 { // a library may repeat the request, or leave that to its caller
				if missing, err = r.program.catchUp(r.ctx); err == nil {
					break
				}
			}
			r.fail(err)
			if missing != len(events) {
				r.failf("%d events were missing, not %d", missing, len(events))
			}
			r.inOrder(events...)
		}},
		{"a token that is revoked while the feed is read", func(r *run) {
			r.daemon.change(func(d *daemon) { d.pageSize = 2 })
			events := r.events(5)
			var pages atomic.Int32
			r.daemon.change(func(d *daemon) {
				d.onPage = func() {
					if pages.Add(1) == 2 {
						r.daemon.revoke()
					}
				}
			})
			r.catchUp(len(events))
			r.inOrder(events...)
		}},
		{"a failover, after which other events have the numbers of lost ones", func(r *run) {
			r.daemon.change(func(d *daemon) { d.pageSize = 2 })
			before := r.events(5)
			r.catchUp(len(before))
			r.lose(2)
			after := r.events(3)
			r.catchUp(len(after))
			r.catchUp(0)
			r.inOrder(slices.Concat(before, after)...)
		}},
		{"odd bodies in the feed", func(r *run) {
			events := []*event{r.raw("text/plain", "no JSON"), r.raw("application/json", ""), r.event(`{"name":"Zoë 🦀"}`)}
			r.catchUp(len(events))
			r.inOrder(events...)
		}},
		{"an event that is never delivered, with gaps filled", testGap},
		{"1,000 events, dropped, repeated and out of order", testThousand},
	}
}

// revoke makes all tokens invalid that were issued.
func (d *daemon) revoke() { d.change(func(d *daemon) { d.revoked = d.tokens }) }

// testGap starts a second program, which fills gaps. It reads the feed at first, and then because a delivery is missing.
func testGap(r *run) {
	if r.database == "" { // two programs without a database share nothing
		r.fail(errSkipped)
		return
	}
	reads := r.daemon.reads()
	p, err := r.startProgram(r.ctx, map[string]string{"FILL_GAPS": "1"})
	if err != nil {
		r.fail(err)
		return
	}
	defer p.kill()
	for deadline := r.o.Now().Add(patience); r.err == nil && r.daemon.reads() == reads; { // else the first reading finds the event
		if r.o.Now().After(deadline) {
			r.failf("the feed was not read at the start")
		}
		r.fail(wait(r.ctx, 50*time.Millisecond))
	}
	events := r.events(3)
	for _, e := range []*event{events[0], events[2]} {
		r.fail(r.until(r.ctx, func() *program { return p }, e, http.StatusNoContent))
	}
	for deadline := r.o.Now().Add(patience); r.err == nil; {
		ids, err := p.inbox(r.ctx)
		r.fail(err)
		if slices.Contains(ids, events[1].id) {
			break
		}
		if r.o.Now().After(deadline) {
			r.failf("the event was not read from the feed")
		}
		r.fail(wait(r.ctx, 200*time.Millisecond))
	}
	r.worked(events...)
}

func testThousand(r *run) {
	events := r.events(1000)
	var queue []*event
	dropped := map[string]bool{}
	for i, e := range events {
		switch n := r.random.IntN(10); {
		case n < 2 && i != len(events)-1:
			dropped[e.id] = true
		case n < 5:
			queue = append(queue, e, e, e)
		default:
			queue = append(queue, e)
		}
	}
	r.random.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
	var delivered, caught atomic.Int64
	r.fail(concurrently(queue, func(e *event) error {
		if delivered.Add(1) == int64(len(queue)/2) { // the feed is read while deliveries arrive
			missing, err := r.program.catchUp(r.ctx)
			if err != nil {
				return err
			}
			caught.Store(int64(missing))
		}
		return r.until(r.ctx, r.running, e, http.StatusNoContent, http.StatusInternalServerError)
	}))
	if r.err == nil && caught.Load() < int64(len(dropped)) {
		r.err = fmt.Errorf("%d events were missing in the feed that were never delivered, but %d were dropped", caught.Load(), len(dropped))
	}
	r.catchUp(0)
	r.worked(events...)
}
