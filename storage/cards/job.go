package cards

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/invalid"
	"spendhook/storage"
)

const maxJobItems = 500

// JobStatus is the status of a bulk creation: QUEUED until one item has finished,
// RUNNING until all have, then COMPLETED.
type JobStatus string

// The statuses of a job.
const (
	JobQueued    JobStatus = "QUEUED"
	JobRunning   JobStatus = "RUNNING"
	JobCompleted JobStatus = "COMPLETED"
)

// ItemStatus is the status of one item: PENDING, then CREATED or ERROR, which are final.
type ItemStatus string

// The statuses of an item.
const (
	ItemPending ItemStatus = "PENDING"
	ItemCreated ItemStatus = "CREATED"
	ItemError   ItemStatus = "ERROR"
)

// Job is one bulk creation of cards, with its items in order.
type Job struct {
	UUID, CompanyUUID        uuid.UUID
	Status                   JobStatus
	Total, Succeeded, Failed int
	CreatedAt                time.Time
	FinishedAt               *time.Time
	Items                    []Item
}

// Item is one item of a Job. A finished item has the outcome that its event reports. RequestUUID is
// derived from the job's uuid and the index. ErrorCode and ErrorMessage are set for ERROR only,
// CardUUID for CREATED only.
type Item struct {
	JobUUID, CompanyUUID    uuid.UUID
	Index                   int
	RequestUUID             uuid.UUID
	Alias                   string
	UserUUID                uuid.UUID
	Status                  ItemStatus
	CardUUID                *uuid.UUID
	ErrorCode, ErrorMessage string
	FinishedAt              *time.Time
	// JobTook is the time since the creation of the job. CreateNextCard sets it for the item that
	// it finishes last.
	JobTook *time.Duration
}

type jobRow struct {
	bun.BaseModel `bun:"table:card_jobs,alias:j"`

	UUID        storage.Key   `bun:"uuid,pk"`
	CompanyUUID storage.Key   `bun:"company_uuid"`
	CreatedAt   storage.Time  `bun:"created_at"`
	Pending     int           `bun:"pending"`
	FinishedAt  *storage.Time `bun:"finished_at"`
}

type itemRow struct {
	bun.BaseModel `bun:"table:card_job_items,alias:i"`
	order

	JobUUID      storage.Key   `bun:"job_uuid,pk"`
	Index        int           `bun:"item_index,pk"`
	CompanyUUID  storage.Key   `bun:"company_uuid"`
	CreatedAt    storage.Time  `bun:"created_at"`
	RequestUUID  storage.Key   `bun:"request_uuid"`
	Status       ItemStatus    `bun:"status"`
	CardUUID     *storage.Key  `bun:"card_uuid"`
	ErrorCode    string        `bun:"error_code"`
	ErrorMessage string        `bun:"error_message"`
	FinishedAt   *storage.Time `bun:"finished_at"`
	RetryAt      *int64        `bun:"retry_at"`
}

type outboxRow struct {
	bun.BaseModel `bun:"table:card_outbox,alias:o"`

	RequestUUID storage.Key  `bun:"request_uuid,pk"`
	CompanyUUID storage.Key  `bun:"company_uuid"`
	JobUUID     storage.Key  `bun:"job_uuid"`
	Index       int          `bun:"item_index"`
	FinishedAt  storage.Time `bun:"finished_at"`
}

func (r *itemRow) item() Item {
	return Item{
		JobUUID: uuid.UUID(r.JobUUID), CompanyUUID: uuid.UUID(r.CompanyUUID), Index: r.Index,
		RequestUUID: uuid.UUID(r.RequestUUID), Alias: r.Name, UserUUID: uuid.UUID(r.HolderUUID),
		Status: r.Status, CardUUID: (*uuid.UUID)(r.CardUUID),
		ErrorCode: r.ErrorCode, ErrorMessage: r.ErrorMessage, FinishedAt: r.FinishedAt.Pointer(),
	}
}

// requestUUID returns the same UUID for the same item. The ids of the card and the event derive from
// this UUID, so neither can be created twice.
func requestUUID(job uuid.UUID, index int) uuid.UUID {
	return uuid.NewSHA1(job, binary.BigEndian.AppendUint32(nil, uint32(index))) //nolint:gosec // 0..499
}

func cardUUID(request uuid.UUID) uuid.UUID { return uuid.NewSHA1(request, []byte("card")) }

// newJob returns the job with its items and their counts.
func newJob(row jobRow, items []itemRow) Job {
	job := Job{
		UUID: uuid.UUID(row.UUID), CompanyUUID: uuid.UUID(row.CompanyUUID), Status: JobRunning,
		Total: len(items), CreatedAt: row.CreatedAt.Time, FinishedAt: row.FinishedAt.Pointer(), Items: make([]Item, len(items)),
	}
	for i := range items {
		job.Items[i] = items[i].item()
		switch items[i].Status {
		case ItemCreated:
			job.Succeeded++
		case ItemError:
			job.Failed++
		case ItemPending:
		}
	}
	switch row.Pending {
	case 0:
		job.Status = JobCompleted
	case job.Total:
		job.Status = JobQueued
	}
	return job
}

// checkRequests reports a wrong number of requests, or malformed fields.
func checkRequests(requests []Request, currency string) error {
	var e invalid.Error
	if len(requests) == 0 {
		e.Add("cardsRequests", "REQUIRED", "must have at least one item")
	}
	if len(requests) > maxJobItems {
		e.Add("cardsRequests", "TOO_MANY", "must have at most %d items", maxJobItems)
		return &e
	}
	for i, r := range requests {
		r.check(&e, fmt.Sprintf("/cardsRequests/%d/", i), currency)
	}
	return e.OrNil()
}
