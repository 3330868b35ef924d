package dispatcher

import (
	"sync"
	"time"

	"spendhook/events"
)

// content is what a dispatch needs to know of an event.
type content struct {
	kind     string
	accepted time.Time
	body     []byte
}

// recentBytes bounds the bodies that each of recent's two generations holds.
const recentBytes = 4 << 20

// recent holds the events that this replica has just accepted until it
// dispatches them, so that it need not read them back. What another replica
// dispatches goes with its generation. It is safe for concurrent use.
type recent struct {
	mu         sync.Mutex
	young, old map[events.Ref]*content
	bytes      int // of young
}

func (r *recent) add(accepted []*events.Stored) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range accepted {
		if r.young == nil || r.bytes > recentBytes {
			r.young, r.old, r.bytes = make(map[events.Ref]*content), r.young, 0
		}
		r.young[e.Ref()] = &content{kind: e.Type, accepted: e.AcceptedAt, body: e.Body}
		r.bytes += len(e.Body)
	}
}

// take removes and returns the events of refs, in their order; nil where there
// is none.
func (r *recent) take(refs []events.Ref) []*content {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*content, len(refs))
	for i, ref := range refs {
		e, ok := r.young[ref]
		if ok {
			delete(r.young, ref)
			r.bytes -= len(e.body)
		} else if e, ok = r.old[ref]; ok {
			delete(r.old, ref)
		}
		out[i] = e
	}
	return out
}
