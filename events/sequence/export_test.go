package sequence

// The bounds of waiting callers.
const (
	MaxWaiting        = maxWaiting
	MaxCompanyWaiting = maxCompanyWaiting
)

// Waiting is how many wait.
func (r *Reader) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}
