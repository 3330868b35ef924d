package conformance

import (
	"net/http"
	"sync/atomic"
)

// crashing has the cases in which the program is killed and started again with its database.
func crashing() []testCase {
	all := []testCase{
		{"killed between deliveries", func(r *run) {
			events := r.events(3)
			r.deliver(events[0], http.StatusNoContent)
			r.deliver(events[1], http.StatusNoContent)
			r.restart()
			r.deliver(events[1], http.StatusNoContent)
			r.deliver(events[2], http.StatusNoContent)
			r.worked(events...)
		}},
		{"killed during deliveries", testKilledDuringDeliveries},
		{"killed while the feed is read", testKilledInTheFeed},
		{"started again, the feed is read where it was left", func(r *run) {
			r.events(3)
			r.catchUp(3)
			r.restart()
			r.daemon.change(func(d *daemon) { d.after = nil })
			r.catchUp(0)
			r.daemon.change(func(d *daemon) {
				if len(d.after) == 0 || d.after[0] != r.last-r.lost {
					r.failf("the feed was read after %v, not after %d", d.after, r.last-r.lost)
				}
			})
		}},
	}
	for i, c := range all {
		all[i].test = func(r *run) {
			if r.database == "" {
				r.fail(errSkipped)
				return
			}
			c.test(r)
		}
	}
	return all
}

func (r *run) restart() {
	r.kill()
	r.start()
}

// testKilledDuringDeliveries kills the program several times while four deliveries are under way. What is not answered is
// delivered again.
func testKilledDuringDeliveries(r *run) {
	events := r.events(80)
	var running atomic.Pointer[program]
	running.Store(r.program)
	var taken atomic.Int64
	kills := make(chan struct{}, len(events))
	finished := make(chan error, 1)
	go func() {
		finished <- concurrently(events, func(e *event) error {
			err := r.until(r.ctx, running.Load, e, http.StatusNoContent, http.StatusInternalServerError)
			if taken.Add(1)%20 == 10 {
				kills <- struct{}{}
			}
			return err
		})
	}()
	for {
		select {
		case <-kills:
			running.Store(nil)
			r.restart()
			running.Store(r.program) // nil if it does not start: then until fails
		case err := <-finished:
			r.fail(err)
			r.worked(events...)
			r.catchUp(0)
			r.worked(events...)
			return
		}
	}
}

// testKilledInTheFeed kills the program when it asks for the fourth page.
func testKilledInTheFeed(r *run) {
	r.daemon.change(func(d *daemon) { d.pageSize = 10 })
	events := r.events(60)
	fourth, done := make(chan struct{}), make(chan struct{})
	var pages atomic.Int32
	r.daemon.change(func(d *daemon) {
		d.onPage = func() {
			if pages.Add(1) == 4 {
				close(fourth)
				<-done
			}
		}
	})
	answered := make(chan error, 1)
	go func(p *program) {
		_, err := p.catchUp(r.ctx)
		answered <- err
	}(r.program)
	select {
	case <-fourth:
	case err := <-answered:
		r.failf("the feed was not read: %w", err)
	}
	r.kill()
	close(done)
	if r.err == nil && <-answered == nil {
		r.failf("POST /catchup was answered before the feed was")
	}
	r.daemon.change(func(d *daemon) { d.onPage = nil })
	r.start()
	r.worked(events[:30]...)
	r.catchUp(30)
	r.inOrder(events...)
}
