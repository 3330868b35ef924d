package relay

import "time"

// window has the records of a stream that have no outcome yet. At most one record of a key is under way. It is not
// safe for concurrent use.
type window struct {
	lines   map[*line]bool   // all with records
	keys    map[string]*line // those with a key
	ready   []*line          // whose first record may be sent, in the order of becoming so
	delayed []*line          // whose first record is sent again later
	size    int
}

// line is the records of one key, in order; or one record without a key.
type line struct {
	records []*Record
	until   time.Time // of a delayed line
}

func newWindow() *window { return &window{lines: make(map[*line]bool), keys: make(map[string]*line)} }

// add appends a record.
func (w *window) add(r *Record) {
	w.size++
	l := w.keys[r.Key]
	if l == nil || r.Key == "" {
		l = &line{}
		w.lines[l] = true
		w.ready = append(w.ready, l)
		if r.Key != "" {
			w.keys[r.Key] = l
		}
	}
	l.records = append(l.records, r)
}

// take returns up to n records that may be sent now, and their lines. Each line must be ended or delayed afterwards.
func (w *window) take(n int, now time.Time) ([]*line, []*Record) {
	waiting := w.delayed[:0]
	for _, l := range w.delayed {
		if l.until.After(now) {
			waiting = append(waiting, l)
		} else {
			w.ready = append(w.ready, l)
		}
	}
	clear(w.delayed[len(waiting):])
	w.delayed = waiting
	n = min(n, len(w.ready))
	taken := w.ready[:n:n]
	w.ready = w.ready[n:]
	records := make([]*Record, n)
	for i, l := range taken {
		records[i] = l.records[0]
	}
	return taken, records
}

// end removes the first record of a line that was taken.
func (w *window) end(l *line) {
	key := l.records[0].Key
	l.records[0] = nil
	l.records = l.records[1:]
	w.size--
	if len(l.records) > 0 {
		w.ready = append(w.ready, l)
		return
	}
	delete(w.lines, l)
	if key != "" {
		delete(w.keys, key)
	}
}

// delay has the first record of a line that was taken sent again after until.
func (w *window) delay(l *line, until time.Time) {
	l.until = until
	w.delayed = append(w.delayed, l)
}

// next is when the first delayed line is sent again; zero: none is delayed.
func (w *window) next() (first time.Time) {
	for _, l := range w.delayed {
		if first.IsZero() || l.until.Before(first) {
			first = l.until
		}
	}
	return first
}

// oldest is the time of the oldest record; zero: there is none.
func (w *window) oldest() (first time.Time) {
	for l := range w.lines {
		if r := l.records[0]; first.IsZero() || r.since.Before(first) {
			first = r.since
		}
	}
	return first
}
