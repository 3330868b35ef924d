package companies_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/cursor"
	"spendhook/internal/invalid"
	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/companies"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func isInvalid(err error) bool {
	_, is := errors.AsType[*invalid.Error](err)
	return is
}

// named lists the names on all pages.
func named(t *testing.T, s *companies.Store, search string, size int) (names []string) {
	t.Helper()
	f := companies.Filter{Search: search, Size: size}
	for pages := 0; ; pages++ {
		list, next, err := s.List(t.Context(), f)
		if err != nil || pages > 20 || len(list) > size {
			t.Fatalf("%q: page %d has %d: %v", search, pages, len(list), err)
		}
		for _, c := range list {
			names = append(names, c.Name)
		}
		if f.Cursor = next; next == "" {
			return names
		}
	}
}

func TestNamesAreFound(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := companies.New(db)
		ids := map[string]uuid.UUID{}
		for _, name := range []string{"Ærø Ferries", "Acme", "acme", "Grand Bolt 100%", "Bolt", "Ácme Größe_GmbH"} {
			ids[name] = uuid.New()
			if c, added, err := s.Put(t.Context(), companies.Company{UUID: ids[name], Name: " " + name}); err != nil || !added || c.Name != name {
				t.Fatalf("%q: %+v %t %v", name, c, added, err)
			}
		}
		for search, want := range map[string][]string{
			"":                          {"Acme", "acme", "Ácme Größe_GmbH", "Ærø Ferries", "Bolt", "Grand Bolt 100%"},
			"acme":                      {"Acme", "acme", "Ácme Größe_GmbH"},
			"GROSSE a":                  {"Ácme Größe_GmbH"},
			"bo":                        {"Bolt", "Grand Bolt 100%"},
			"olt":                       nil,
			"100%":                      {"Grand Bolt 100%"},
			"%":                         nil,
			"aero":                      {"Ærø Ferries"},
			"!":                         nil,
			ids["Bolt"].String():        {"Bolt"},
			uuid.NewString():            nil,
			strings.Repeat("acme ", 40): {"Acme", "acme", "Ácme Größe_GmbH"},
		} {
			for _, size := range []int{1, 2, 100} {
				got := named(t, s, search, size)
				slices.SortFunc(got, strings.Compare)
				if slices.SortFunc(want, strings.Compare); !slices.Equal(got, want) {
					t.Errorf("%q, %d on a page: %q, want %q", search, size, got, want)
				}
			}
		}
		if all := named(t, s, "", 2); all[len(all)-1] != "Grand Bolt 100%" || all[len(all)-2] != "Bolt" {
			t.Errorf("the order is %q", all)
		}
	})
}

func TestANameIsChangedAndRemoved(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s, id := companies.New(db), uuid.New()
		_, err := s.Get(t.Context(), id)
		storagetest.WantError(t, err, storage.ErrNotFound)
		for i, name := range []string{"One", "Two"} {
			if _, added, err := s.Put(t.Context(), companies.Company{UUID: id, Name: name}); err != nil || added != (i == 0) {
				t.Fatal(added, err)
			}
		}
		if c, err := s.Get(t.Context(), id); err != nil || c != (companies.Company{UUID: id, Name: "Two"}) {
			t.Errorf("%+v %v", c, err)
		}
		for range 2 {
			if err := s.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		if list := named(t, s, "two", 10); list != nil {
			t.Errorf("removed: %q", list)
		}
		for _, wrong := range []string{"", " \t", "a\nb", "\xff", "a\x00", strings.Repeat("é", 200+1)} {
			if _, _, err := s.Put(t.Context(), companies.Company{UUID: id, Name: wrong}); !isInvalid(err) {
				t.Errorf("%q: %v", wrong, err)
			}
		}
		if _, _, err := s.Put(t.Context(), companies.Company{UUID: id, Name: strings.Repeat("é", 200)}); err != nil {
			t.Error(err)
		}
		_, _, err = s.List(t.Context(), companies.Filter{Cursor: "AAAA", Size: 1})
		storagetest.WantError(t, err, cursor.ErrBad)
	})
}

// TestAnImportNamesItsCompanies also when it changes a name.
func TestAnImportNamesItsCompanies(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		storagetest.LoadCompanies(t, db)
		s := companies.New(db)
		if list := named(t, s, "", 10); !slices.Equal(list, []string{"Acme", "Bolt"}) {
			t.Errorf("%q", list)
		}
		storagetest.Load(t, db, fmt.Sprintf(`{"kind":"company","uuid":"%s","name":"Ácme Inc.","currency":"EUR","creditLimit":1000.00}`, storagetest.Acme))
		if list := named(t, s, "acme inc", 10); !slices.Equal(list, []string{"Ácme Inc."}) {
			t.Errorf("%q", list)
		}
		_, refused := storagetest.Import(t, db,
			fmt.Sprintf(`{"kind":"company","uuid":"%s","name":"Other","currency":"USD","creditLimit":1000.00}`, storagetest.Acme),
			`{"kind":"company","uuid":"c0000000-0000-4000-8000-000000000000","name":"Other","currency":"EUR","creditLimit":1000.001}`)
		if list := named(t, s, "other", 10); len(refused) != 2 || list != nil {
			t.Errorf("refused %v, named %q", refused, list)
		}
	})
}
