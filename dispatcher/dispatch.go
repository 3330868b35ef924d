package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/subscribers"
)

// handle works on one task of the queue. It returns once the task's attempts
// have been started or put off: what is in flight is noted in Redis under the
// task's id, so nothing depends on the queue remembering the task. What a task
// that fails leaves open, the sweep hands out again.
func (d *Dispatcher) handle(ctx context.Context, id, kind, payload string) {
	if d.intake.Err() != nil {
		return
	}
	d.working.Add(1)
	defer d.working.Done()
	if err := d.do(ctx, id, kind, payload); err != nil {
		d.Logger.Error("task failed, its work will be handed out again", "task", kind, "error", err)
	}
}

func (d *Dispatcher) do(ctx context.Context, id, kind, payload string) error {
	switch kind {
	case taskDispatch:
		refs, err := parseEventRefs(payload)
		if err != nil {
			return err
		}
		return d.dispatch(ctx, id, refs)
	case taskAttempt:
		stamp, refs, err := parseAttemptPayload(payload)
		if err != nil {
			return err
		}
		return d.attemptAll(ctx, id, stamp, refs)
	case taskJob:
		return d.runJob(ctx, id, payload)
	}
	return fmt.Errorf("task of unknown kind %q", kind)
}

// packRefs joins references for a task's payload. The company is left out
// where it is that of the reference before.
func packRefs(refs []string) string {
	var out strings.Builder
	company := ""
	for i, r := range refs {
		if i > 0 {
			out.WriteByte(' ')
		}
		c, rest, _ := strings.Cut(r, "/")
		if c != company {
			out.WriteString(c)
			company = c
		}
		out.WriteByte('/')
		out.WriteString(rest)
	}
	return out.String()
}

// unpackRefs undoes packRefs.
func unpackRefs(payload string) []string {
	refs := strings.Fields(payload)
	company := ""
	for i, f := range refs {
		c, rest, _ := strings.Cut(f, "/")
		if c != "" {
			company = c
		}
		refs[i] = company + "/" + rest
	}
	return refs
}

func parseEventRefs(payload string) ([]events.Ref, error) {
	texts := unpackRefs(payload)
	refs := make([]events.Ref, len(texts))
	for i, text := range texts {
		r, err := events.ParseRef(text)
		if err != nil {
			return nil, err
		}
		refs[i] = r
	}
	return refs, nil
}

// dispatch fans events out to the subscribers that want them, as many at a
// time as the memory budget of a load allows.
func (d *Dispatcher) dispatch(ctx context.Context, token string, refs []events.Ref) error {
	for len(refs) > 0 {
		found, rest, err := d.Store.load(ctx, d.Replica, token, refs, d.recent.take(refs))
		if err != nil {
			return d.failed(token, err)
		}
		t := &task{token: token}
		todo, settled, err := d.fanOut(ctx, t, found)
		if err != nil {
			return d.failed(token, err)
		}
		d.begin(t, todo, settled)
		refs, token = rest, token+"+"
	}
	return nil
}

// failed takes back the note that a task is in flight, so that the sweep finds
// its work.
func (d *Dispatcher) failed(token string, err error) error {
	d.recorder.in <- &outcome{work: work{task: &task{token: token, left: 1}}}
	return err
}

// fanOut matches events with subscribers. settled are the events that nobody
// is to receive.
func (d *Dispatcher) fanOut(ctx context.Context, t *task, found []loadedEvent) (todo []*work, settled []*outcome, err error) {
	for _, e := range found {
		ev := &dispatching{ref: e.ref}
		n := len(todo)
		if e.at == nil && e.raw == "" {
			d.Logger.Warn("event expired before its dispatch", "company_uuid", e.ref.Company, "event_id", e.ref.ID)
		} else if c, err := e.content(); err != nil {
			d.setAside(ctx, e.ref.String(), err)
			continue
		} else if todo, err = d.match(ctx, todo, work{task: t, event: ev}, e, c); err != nil {
			return nil, nil, err
		}
		if ev.left = len(todo) - n; ev.left == 0 {
			ev.left = 1
			settled = append(settled, &outcome{work: work{ref: ref{Ref: e.ref}, task: t, event: ev}})
		}
	}
	return todo, settled, nil
}

// aside is how long what cannot be read waits for somebody to mend it.
const aside = 10 * time.Minute

// setAside puts off a reference whose event cannot be read, so that it neither
// fails the others of its task again and again nor is dropped.
func (d *Dispatcher) setAside(ctx context.Context, ref string, why error) {
	d.Logger.Error("stored event is damaged, trying again later", "ref", ref, "after", aside, "error", why)
	if _, err := d.Store.giveBack(ctx, d.Now().Add(aside), []string{ref}); err != nil {
		d.Logger.Error("damaged event not set aside", "ref", ref, "error", err)
	}
}

// match adds a copy of w for each enabled subscriber that wants the event and
// has no delivery of it yet.
func (d *Dispatcher) match(ctx context.Context, todo []*work, w work, e loadedEvent, c *content) ([]*work, error) {
	subs, err := d.Registry.Subscribers(ctx, e.ref.Company, e.version)
	if err != nil {
		return nil, err
	}
	for _, sub := range subs {
		if !sub.Enabled || !sub.Wants(c.kind) || slices.Contains(e.known, sub.UUID.String()) {
			continue
		}
		w := w
		w.ref = ref{Ref: e.ref, Subscriber: sub.UUID}
		w.body, w.accepted = c.body, c.accepted
		w.base = &record{Status: StatusPending, EventType: c.kind, Created: c.accepted.UnixMilli()}
		if w.to, err = d.target(ctx, sub); err != nil {
			return nil, err
		}
		todo = append(todo, &w)
	}
	return todo, nil
}

// attemptAll attempts deliveries that the clock handed out.
func (d *Dispatcher) attemptAll(ctx context.Context, token string, stamp int64, refs []ref) error {
	begun, err := d.Store.begin(ctx, d.Replica, token, stamp, refs)
	if err != nil {
		return d.failed(token, err)
	}
	t := &task{token: token}
	var todo []*work
	var settled []*outcome
	for _, b := range begun {
		w := work{ref: b.ref, base: b.rec, task: t}
		end, err := d.prepare(ctx, &w, b)
		if errors.Is(err, errDamaged) {
			d.setAside(ctx, b.ref.String(), err)
			continue
		}
		if err != nil {
			return d.failed(token, err)
		}
		if end != nil {
			settled = append(settled, &outcome{work: w, apply: end})
		} else {
			todo = append(todo, &w)
		}
	}
	d.begin(t, todo, settled)
	return nil
}

var errDamaged = errors.New("event cannot be read")

// prepare fills in what an attempt needs, as things stand now; or it says what
// becomes of the delivery without one.
func (d *Dispatcher) prepare(ctx context.Context, w *work, b begun) (end func(record, time.Time) record, err error) {
	if b.raw == "" {
		return expire, nil
	}
	stored, err := events.ParseStored(b.ref.Ref, b.raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	subs, err := d.Registry.Subscribers(ctx, b.ref.Company, b.version)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(subs, func(s *subscribers.Subscriber) bool { return s.UUID == b.ref.Subscriber })
	switch {
	case i < 0:
		return cancel, nil
	case !subs[i].Enabled:
		return hold, nil
	}
	w.body, w.accepted = stored.Body, stored.AcceptedAt
	w.to, err = d.target(ctx, subs[i])
	return nil, err
}

// begin counts the outcomes to come, then starts the attempts.
func (d *Dispatcher) begin(t *task, todo []*work, settled []*outcome) {
	t.left = len(todo) + len(settled)
	if t.left == 0 {
		t.left = 1
		settled = append(settled, &outcome{work: work{task: t}})
	}
	for _, o := range settled {
		d.recorder.in <- o
	}
	d.launch(todo)
}

// launch starts attempts, those of each endpoint in order and of different
// endpoints side by side, so that none waits behind a busy one.
func (d *Dispatcher) launch(todo []*work) {
	d.room.enter(len(todo), d.intake.Done())
	lanes := make(map[uuid.UUID][]*work)
	for _, w := range todo {
		lanes[w.to.sub.UUID] = append(lanes[w.to.sub.UUID], w)
	}
	for _, lane := range lanes {
		d.working.Go(func() { d.lane(lane) })
	}
}

// lanePatience is how many times MaxWait a lane may wait in all.
const lanePatience = 4

// lane starts the attempts to one endpoint as it has slots for them, and puts
// off those that it has none for.
func (d *Dispatcher) lane(todo []*work) {
	end := d.Now().Add(lanePatience * d.MaxWait)
	for _, w := range todo {
		wait := max(0, min(d.MaxWait, end.Sub(d.Now())))
		release, after, ok := d.endpoints.acquire(d.intake, w.to.sub.UUID, wait)
		d.room.leave()
		if ok {
			d.working.Go(func() { d.attempt(w, release) })
			continue
		}
		if after == 0 { // stopping
			d.recorder.in <- &outcome{work: *w, apply: interrupt}
			continue
		}
		d.metrics.postponed.Inc()
		d.recorder.in <- &outcome{work: *w, apply: func(r record, now time.Time) record { return postpone(r, after, now) }}
	}
}

// attempt POSTs one delivery and passes on what came of it. It keeps its slot
// until the recorder has taken that: what is sent but not recorded is repeated
// after a crash, so there must never be more of it than slots.
func (d *Dispatcher) attempt(w *work, release func(Result)) {
	res := d.Sender.Send(d.sending, w.to.request(w.ref.ID, w.body))
	d.recorder.in <- &outcome{work: *w, result: &res, apply: func(r record, now time.Time) record {
		return decide(r, res, d.Policy, now, d.Jitter)
	}}
	release(res)
}
