package terminal

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Progress draws one line that is rewritten in place. It draws nothing unless
// its output is a terminal and the work takes longer than a second.
type Progress struct {
	out     io.Writer // nil: nothing is drawn
	unit    string    // what is counted
	size    int64     // bytes expected, 0 when unknown
	now     func() time.Time
	started time.Time
	drawn   time.Time
}

// NewProgress returns a Progress that counts units. size is the total number of bytes to read, 0 if
// unknown.
func NewProgress(out io.Writer, unit string, size int64, now func() time.Time) *Progress {
	p := &Progress{unit: unit, size: size, now: now, started: now()}
	if Is(out) {
		p.out = out
	}
	return p
}

// Update draws the line, at most ten times a second.
func (p *Progress) Update(count, read int64) {
	now := p.now()
	if p.out == nil || now.Sub(p.started) < time.Second || now.Sub(p.drawn) < 100*time.Millisecond {
		return
	}
	p.drawn = now
	fmt.Fprintf(p.out, "\r\x1b[K%s", progressLine(p.unit, count, read, p.size, now.Sub(p.started)))
}

// Finish removes the line, at the end or before other output.
func (p *Progress) Finish() {
	if p.out != nil && !p.drawn.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = time.Time{}
	}
}

func progressLine(unit string, count, read, size int64, took time.Duration) string {
	rate := float64(count) / took.Seconds()
	if size <= 0 {
		return fmt.Sprintf("%d %s  %.0f/s", count, unit, rate)
	}
	const width = 30
	done := min(float64(read)/float64(size), 1)
	filled := int(done * width)
	bar := strings.Repeat("█", filled) + strings.Repeat("░", width-filled)
	return fmt.Sprintf("%s %3.0f%%  %d %s  %.0f/s", bar, done*100, count, unit, rate)
}
