package cardjobs

import (
	"maps"
	"sync"

	"github.com/google/uuid"

	"spendhook/storage"
)

// mark names an item of a job by its place in the order of finishing.
type mark struct {
	company  uuid.UUID
	finished int64 // ms
	index    int
}

func markOf(item *storage.CardItem) mark {
	return mark{company: item.CompanyUUID, finished: item.FinishedAt.UnixMilli(), index: item.Index}
}

func (m mark) after(o mark) bool {
	return m.finished > o.finished || m.finished == o.finished && m.index > o.index
}

// lastOf is the last item of a completed job to have finished.
func lastOf(items []storage.CardItem) (last mark) {
	for i := range items {
		if m := markOf(&items[i]); m.after(last) {
			last = m
		}
	}
	return last
}

// published remembers, for each job not yet known to be over, the last of its
// items whose outcome this replica published first. It holds a few bytes for
// each unfinished job and is safe for concurrent use.
type published struct {
	mu   sync.Mutex
	jobs map[uuid.UUID]mark
}

func newPublished() *published { return &published{jobs: map[uuid.UUID]mark{}} }

func (p *published) note(item *storage.CardItem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := markOf(item); m.after(p.jobs[item.JobUUID]) {
		p.jobs[item.JobUUID] = m
	}
}

// except is what is remembered of jobs other than these.
func (p *published) except(jobs map[uuid.UUID]bool) map[uuid.UUID]mark {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := maps.Clone(p.jobs)
	maps.DeleteFunc(out, func(id uuid.UUID, _ mark) bool { return jobs[id] })
	return out
}

// forget drops what except told, unless something later was noted meanwhile.
func (p *published) forget(job uuid.UUID, last mark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.jobs[job] == last {
		delete(p.jobs, job)
	}
}
