package storage

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// CreateCardJob stores 1 to 500 requests as a job, all or none, before any work
// on them. The shape of every item is checked (*invalid.Error, the path of a
// field begins with cardsRequests[index]); the rules of business are left to
// CreateCardForItem. Done again for the same once, it returns the job as it was
// first stored; another use of the key is ErrKeyReused.
func (s *Store) CreateCardJob(ctx context.Context, company uuid.UUID, requests []CardRequest, once Once) (CardJob, error) {
	if err := checkCount(requests); err != nil {
		return CardJob{}, err
	}
	row := jobRow{CompanyUUID: key(company)}
	var items []itemRow
	err := s.write(ctx, "create card job", func(ctx context.Context, tx bun.Tx) error {
		p, err := cardPolicy(ctx, tx, company)
		if err != nil {
			return err
		}
		if err := checkItems(requests, p.Currency); err != nil {
			return err
		}
		made, err := s.claim(ctx, tx, once)
		if err != nil {
			return err
		}
		row.UUID, row.CreatedAt = made.MadeUUID, made.CreatedAt
		items = newItems(row, requests, p.Currency)
		if made.again {
			return nil
		}
		if _, err := tx.NewInsert().Model(&row).Exec(ctx); err != nil {
			return err
		}
		_, err = tx.NewInsert().Model(&items).Exec(ctx)
		return err
	})
	if err != nil {
		return CardJob{}, err
	}
	return newJob(row, items), nil
}

func newItems(job jobRow, requests []CardRequest, currency string) []itemRow {
	items := make([]itemRow, len(requests))
	for i, r := range requests {
		items[i] = itemRow{
			JobUUID: job.UUID, Index: i, RequestUUID: key(requestUUID(uuid.UUID(job.UUID), i)),
			Type: r.listedType(), Alias: r.Alias, UserUUID: key(r.UserUUID), Threshold: storedThreshold(r.Threshold, currency),
			Periodicity: strings.ToUpper(r.Periodicity), Status: ItemPending,
		}
	}
	return items
}

// CardJob reads a job of the company, or returns ErrNotFound.
func (s *Store) CardJob(ctx context.Context, company, id uuid.UUID) (CardJob, error) {
	var row jobRow
	var items []itemRow
	err := s.snapshot(ctx, "read card job", func(ctx context.Context, db bun.IDB) error {
		err := db.NewSelect().Model(&row).Where("uuid = ?", key(id)).Where("company_uuid = ?", key(company)).Scan(ctx)
		if err != nil {
			return err
		}
		return db.NewSelect().Model(&items).Where("job_uuid = ?", key(id)).OrderExpr("item_index").Scan(ctx)
	})
	if err != nil {
		return CardJob{}, err
	}
	return newJob(row, items), nil
}

// CreateCardForItem does the work of one item: in one transaction it creates
// the card, or finds why not, and writes the outcome and its outbox row. Done
// again, also at the same time elsewhere, it only returns the outcome. It
// returns ErrNotFound for an item that does not exist.
func (s *Store) CreateCardForItem(ctx context.Context, job uuid.UUID, index int, now time.Time) (CardItem, error) {
	var row itemRow
	err := s.write(ctx, "create card for item", func(ctx context.Context, tx bun.Tx) error {
		row = itemRow{}
		q := tx.NewSelect().Model(&row).ColumnExpr("i.*").
			ColumnExpr("(SELECT company_uuid FROM card_jobs WHERE uuid = i.job_uuid) AS company_uuid").
			Where("job_uuid = ?", key(job)).Where("item_index = ?", index)
		if err := s.locked(q).Scan(ctx); err != nil || row.Status != ItemPending {
			return err
		}
		return row.finish(ctx, tx, now)
	})
	if err != nil {
		return CardItem{}, err
	}
	return row.item(), nil
}

// finish decides the item's outcome and writes everything that follows.
func (r *itemRow) finish(ctx context.Context, tx bun.Tx, now time.Time) error {
	if err := r.createCard(ctx, tx, now); err != nil {
		return err
	}
	at := now.UnixMilli()
	r.FinishedAt = &at
	_, err := tx.NewUpdate().Model(r).Column("status", "card_uuid", "error_code", "error_message", "finished_at").
		WherePK().Exec(ctx)
	if err != nil {
		return err
	}
	out := outboxRow{RequestUUID: r.RequestUUID, JobUUID: r.JobUUID, Index: r.Index, FinishedAt: at}
	_, err = tx.NewInsert().Model(&out).Exec(ctx)
	return err
}

func (r *itemRow) createCard(ctx context.Context, tx bun.Tx, now time.Time) error {
	p, err := cardPolicy(ctx, tx, uuid.UUID(r.CompanyUUID))
	if err != nil && !errors.Is(err, ErrUserNotFound) {
		return err
	}
	id := key(cardUUID(uuid.UUID(r.RequestUUID)))
	card := cardRow{
		UUID: id, CompanyUUID: r.CompanyUUID, HolderUUID: r.UserUUID, Type: r.Type, Name: r.Alias,
		Threshold: r.Threshold, Periodicity: r.Periodicity,
	}
	card.issue(p, now.UnixMilli())
	switch err = insert(ctx, tx, p, &card); {
	case errors.Is(err, ErrUserNotFound):
		r.fail("USER_NOT_FOUND", err)
	case errors.Is(err, ErrThresholdExceedsLimit):
		r.fail("THRESHOLD_EXCEEDS_LIMIT", err)
	case err != nil:
		return err
	default:
		r.Status, r.CardUUID = ItemCreated, &id
	}
	return nil
}

func (r *itemRow) fail(code string, err error) {
	r.Status, r.ErrorCode, r.ErrorMessage = ItemError, code, err.Error()
}

// PendingOutcomes lists finished items whose event has not been published yet,
// the longest finished first, at most limit.
func (s *Store) PendingOutcomes(ctx context.Context, limit int) ([]CardItem, error) {
	var rows []itemRow
	err := s.query(ctx, "list pending outcomes", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model(&rows).ColumnExpr("i.*, j.company_uuid").
			Join("JOIN card_outbox AS o ON o.job_uuid = i.job_uuid AND o.item_index = i.item_index").
			Join("JOIN card_jobs AS j ON j.uuid = i.job_uuid").
			OrderExpr("o.finished_at, o.request_uuid").Limit(int64(limit)).Scan(ctx)
	})
	items := make([]CardItem, len(rows))
	for i := range rows {
		items[i] = rows[i].item()
	}
	return items, err
}

// MarkPublished takes outcomes off the list of the pending; doing it again
// changes nothing.
func (s *Store) MarkPublished(ctx context.Context, requests ...uuid.UUID) error {
	if len(requests) == 0 {
		return nil
	}
	return s.write(ctx, "mark published", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewDelete().Model((*outboxRow)(nil)).Where("request_uuid IN ?", bun.Tuple(keys(requests))).Exec(ctx)
		return err
	})
}

// UnfinishedJobs lists jobs that have PENDING items, by uuid from behind after
// (uuid.Nil: from the beginning), at most limit.
func (s *Store) UnfinishedJobs(ctx context.Context, after uuid.UUID, limit int) ([]UnfinishedJob, error) {
	var rows []struct {
		JobUUID   key   `bun:"job_uuid"`
		Index     int   `bun:"item_index"`
		CreatedAt int64 `bun:"created_at"`
	}
	err := s.query(ctx, "list unfinished jobs", func(ctx context.Context, db bun.IDB) error {
		jobs := db.NewSelect().Table("card_job_items").Distinct().Column("job_uuid").
			Where("status = ?", ItemPending).Where("job_uuid > ?", key(after)).OrderExpr("job_uuid").Limit(int64(limit))
		return db.NewSelect().TableExpr("card_job_items AS i").ColumnExpr("i.job_uuid, i.item_index, j.created_at").
			Join("JOIN card_jobs AS j ON j.uuid = i.job_uuid").
			Where("i.status = ?", ItemPending).Where("i.job_uuid IN (?)", jobs).
			OrderExpr("i.job_uuid, i.item_index").Scan(ctx, &rows)
	})
	var jobs []UnfinishedJob
	for _, r := range rows {
		if n := len(jobs); n == 0 || jobs[n-1].UUID != uuid.UUID(r.JobUUID) {
			jobs = append(jobs, UnfinishedJob{UUID: uuid.UUID(r.JobUUID), CreatedAt: time.UnixMilli(r.CreatedAt).UTC()})
		}
		last := &jobs[len(jobs)-1]
		last.Indexes = append(last.Indexes, r.Index)
	}
	return jobs, err
}

// PurgeCardJobs forgets at most 100 jobs that were created before the time and
// are over: every item finished and published. It returns how many.
func (s *Store) PurgeCardJobs(ctx context.Context, before time.Time) (int, error) {
	var ids []key
	err := s.write(ctx, "purge card jobs", func(ctx context.Context, tx bun.Tx) error {
		ids = nil
		err := tx.NewSelect().TableExpr("card_jobs AS j").Column("uuid").Where("created_at < ?", before.UnixMilli()).
			Where("NOT EXISTS (SELECT 1 FROM card_job_items AS i WHERE i.job_uuid = j.uuid AND i.status = ?)", ItemPending).
			Where("NOT EXISTS (SELECT 1 FROM card_outbox AS o WHERE o.job_uuid = j.uuid)").
			OrderExpr("created_at").Limit(maxSize).Scan(ctx, &ids)
		if err != nil || len(ids) == 0 {
			return err
		}
		if _, err := tx.NewDelete().Table("card_job_items").Where("job_uuid IN ?", bun.Tuple(ids)).Exec(ctx); err != nil {
			return err
		}
		_, err = tx.NewDelete().Table("card_jobs").Where("uuid IN ?", bun.Tuple(ids)).Exec(ctx)
		return err
	})
	return len(ids), err
}
