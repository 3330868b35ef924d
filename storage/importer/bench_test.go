package importer_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/calendar"
	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/importer"
	"spendhook/storage/reimbursements"
)

// go test ./storage/importer -run - -bench . -rows 1000000 measures at the size of
// the figures in the documentation.
var (
	benchRows      = flag.Int("rows", 50_000, "reimbursements in the benchmarks")
	benchCompanies = flag.Int("companies", 50, "companies that share them")
)

// benchStores imports the data once for all benchmarks.
var benchStores = map[string]func() (data, time.Duration){
	"sqlite": sync.OnceValues(func() (data, time.Duration) {
		dir, err := os.MkdirTemp("", "spendbench-")
		check(err)
		benchEnds = append(benchEnds, func() { check(os.RemoveAll(dir)) })
		return filled(storage.Options{DataDir: dir, FullSync: true})
	}),
	"postgres": sync.OnceValues(func() (data, time.Duration) {
		url, remove, err := pgtest.Launch()
		check(err)
		benchEnds = append(benchEnds, remove)
		return filled(storage.Options{URL: url})
	}),
}

// benchEnds has the functions that run after all benchmarks, the last one first.
var benchEnds []func()

// cleaning runs the tests and benchmarks and then the benchEnds.
type cleaning struct{ m *testing.M }

func (c cleaning) Run() int {
	defer func() {
		for _, end := range slices.Backward(benchEnds) {
			end()
		}
	}()
	return c.m.Run()
}

func filled(o storage.Options) (data, time.Duration) {
	s, err := storage.Open(o)
	check(err)
	benchEnds = append(benchEnds, func() { check(s.Close()) })
	check(s.Migrate(context.Background()))
	r, w := io.Pipe()
	go func() { w.CloseWithError(importer.WriteDemoData(w, benchData())) }()
	start := time.Now()
	in := importer.Importer{DB: s}
	_, err = in.Run(context.Background(), r)
	check(err)
	return dataOf(s), time.Since(start)
}

func benchData() importer.DemoData {
	n := *benchCompanies
	return importer.DemoData{Companies: n, Users: 200, Cards: max(1, *benchRows/10/n), Reimbursements: *benchRows / n}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func reimbursementsOf(b *testing.B, s data, f reimbursements.Filter) []reimbursements.Reimbursement {
	b.Helper()
	rows, _, err := s.reimbursements.List(b.Context(), f)
	if err != nil {
		b.Fatal(err)
	}
	return rows
}

func companyOf(b *testing.B, s data) uuid.UUID {
	b.Helper()
	return reimbursementsOf(b, s, reimbursements.Filter{Page: storage.Page{Number: rand.IntN(100), Size: 1}})[0].CompanyUUID
}

func BenchmarkImport(b *testing.B) {
	for name, setup := range benchStores {
		b.Run(name, func(b *testing.B) {
			_, took := setup()
			for b.Loop() {
				continue
			}
			b.ReportMetric(float64(*benchRows)*1.1/took.Seconds(), "rows/s")
		})
	}
}

func BenchmarkPage1(b *testing.B) { benchPage(b, 1) }

func BenchmarkPageHalfway(b *testing.B) { benchPage(b, *benchRows/40) }

func BenchmarkPageLast(b *testing.B) { benchPage(b, *benchRows/20) }

func benchPage(b *testing.B, number int) {
	b.Helper()
	for name, setup := range benchStores {
		b.Run(name, func(b *testing.B) {
			s, _ := setup()
			for b.Loop() {
				if rows := reimbursementsOf(b, s, reimbursements.Filter{Page: storage.Page{Number: number - 1}}); len(rows) != 20 {
					b.Fatalf("%d rows", len(rows))
				}
			}
		})
	}
}

// BenchmarkFiltered lists with a filter that is not in the cache yet.
func BenchmarkFiltered(b *testing.B) {
	for name, setup := range benchStores {
		b.Run(name, func(b *testing.B) {
			s, _ := setup()
			company := companyOf(b, s)
			for b.Loop() {
				reimbursementsOf(b, s, randomFilter(company))
			}
		})
	}
}

func randomFilter(company uuid.UUID) reimbursements.Filter {
	from := calendar.Date(20_634 - rand.Int32N(700))
	to := from + calendar.Date(rand.Int32N(200))
	f := reimbursements.Filter{Company: &company, Statuses: []string{reimbursements.Statuses[rand.IntN(10)]}}
	days := reimbursements.DateRange{Start: &from, End: &to}
	switch rand.IntN(4) {
	case 0:
		f.ExpenseDate = days
	case 1:
		f.RequestCreationDate, f.CategoryCodes = days, []int32{5812, 7011}
	case 2:
		f.LastUpdateDate, f.RequesterName = days, "mull"
	default:
		f.FinalApprovalDate, f.Statuses = days, nil
	}
	return f
}

func BenchmarkCardRead(b *testing.B) {
	for name, setup := range benchStores {
		b.Run(name, func(b *testing.B) {
			s, _ := setup()
			list, _, err := s.Cards(b.Context(), cards.Filter{Page: storage.Page{Size: 100}})
			check(err)
			for b.Loop() {
				c := list[rand.IntN(len(list))]
				if _, err := s.Card(b.Context(), c.CompanyUUID, c.UUID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCreateCard(b *testing.B) {
	for name, setup := range benchStores {
		b.Run(name, func(b *testing.B) {
			s, _ := setup()
			list, _, err := s.Cards(b.Context(), cards.Filter{Status: "ACTIVE", Page: storage.Page{Size: 100}})
			check(err)
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					c := list[rand.IntN(len(list))]
					_, err := s.CreateCard(b.Context(), c.CompanyUUID, cards.Request{Type: "VIRTUAL", Alias: "bench", UserUUID: c.HolderUUID}, cards.Once{})
					if err != nil && !errors.Is(err, cards.ErrUserNotFound) {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cards/s")
		})
	}
}
