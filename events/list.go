package events

import (
	"bytes"
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
)

const (
	defaultSize = 20
	maxSize     = 100
	// maxWork bounds the index entries that one call examines; turning to
	// another company costs companyWork of them.
	maxWork     = 1000
	companyWork = 10
	// typeBatch is how many bodies are loaded at a time to look at their type.
	typeBatch = 100
)

// Filter says which events to list; zero fields do not filter.
type Filter struct {
	Company  *uuid.UUID // nil: every company's, for those who may see them
	Type     string
	From, To *time.Time // accepted at, both inclusive
	Cursor   string     // Next of the page before, under the same filter
	Size     int        // at most 100; 20 when not positive
}

// Page is one page of a list. Next is "" at the end of the list; a page may be
// short, even empty, and still have a Next.
type Page struct {
	Items []Stored
	Next  string
}

// List reads events, newest accepted first; without a company, partition by
// partition and company by company, in the order of their UUIDs. It examines at most
// 1,000 index entries, so that a rare type costs more calls, not a longer one.
func (s *Store) List(ctx context.Context, f Filter) (Page, error) {
	at, err := decodeCursor(f)
	if err != nil {
		return Page{}, err
	}
	l := &listing{store: s, filter: f, at: at, room: pageSize(f.Size), work: maxWork}
	if f.Company != nil {
		err = l.readCompany(ctx, *f.Company)
	} else {
		err = l.readPartitions(ctx)
	}
	if err != nil {
		return Page{}, err
	}
	if l.more {
		return Page{Items: l.items, Next: l.at.encode(f)}, nil
	}
	return Page{Items: l.items}, nil
}

func pageSize(asked int) int {
	if asked <= 0 {
		return defaultSize
	}
	return min(asked, maxSize)
}

// listing is one List under way.
type listing struct {
	store  *Store
	filter Filter
	at     cursor
	items  []Stored
	room   int  // items that still fit
	work   int  // index entries that may still be examined
	more   bool // the list goes on after at
}

func (l *listing) spent() bool { return l.room <= 0 || l.work <= 0 }

func (l *listing) readPartitions(ctx context.Context) error {
	first := 0
	if l.filter.Cursor != "" {
		first = partition.Of(l.at.company)
	}
	for p := first; p < partition.Count && !l.more; p++ {
		if err := l.readPartition(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// readPartition reads all names of the partition, a 256th of the companies with
// recent events: the set is ordered by time, and the walk needs an order that
// stays.
func (l *listing) readPartition(ctx context.Context, p int) error {
	low := l.store.span(uuid.Nil, l.filter.From, nil, descending).low
	companies, err := l.store.companies(ctx, p, low)
	if err != nil {
		return err
	}
	for _, company := range companies {
		if l.passed(p, company) {
			continue
		}
		if l.more = l.spent(); l.more {
			return nil
		}
		if err := l.readCompany(ctx, company); err != nil || l.more {
			return err
		}
		l.at = cursor{company: company}
		l.work -= companyWork
	}
	return nil
}

// passed reports whether the walk has finished with a company of partition p.
func (l *listing) passed(p int, company uuid.UUID) bool {
	if l.at.company == uuid.Nil || partition.Of(l.at.company) != p {
		return false
	}
	order := bytes.Compare(company[:], l.at.company[:])
	return order < 0 || order == 0 && l.at.id == ""
}

func (l *listing) readCompany(ctx context.Context, company uuid.UUID) error {
	if l.at.company != company {
		l.at = cursor{company: company}
	}
	sp := l.store.span(company, l.filter.From, l.filter.To, descending)
	for {
		n := l.batch()
		places, err := l.store.page(ctx, sp, l.at.place, n)
		if err != nil {
			return err
		}
		taken, err := l.take(ctx, places)
		if err != nil {
			return err
		}
		ended := len(places) < n
		if l.more = taken < len(places) || !ended && l.spent(); l.more || ended {
			return nil
		}
	}
}

// batch is how many index entries to look at next: one more than fit tells
// whether the list goes on.
func (l *listing) batch() int {
	if l.filter.Type != "" {
		return min(typeBatch, l.work)
	}
	return min(l.room+1, l.work)
}

// take moves on over places until the page is full and returns how many it
// passed. An index entry may outlive its event, or the event's payload.
func (l *listing) take(ctx context.Context, places []place) (int, error) {
	refs := make([]Ref, len(places))
	for i, p := range places {
		refs[i] = Ref{Company: l.at.company, ID: p.id}
	}
	stored, err := l.store.GetMany(ctx, refs)
	if err != nil {
		return 0, err
	}
	for i, p := range places {
		if l.room == 0 {
			return i, nil
		}
		l.at.place = p
		l.work--
		if stored[i] != nil && stored[i].State != Compacted && (l.filter.Type == "" || l.filter.Type == stored[i].Type) {
			l.items = append(l.items, *stored[i])
			l.room--
		}
	}
	return len(places), nil
}
