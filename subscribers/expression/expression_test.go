package expression

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"cel.dev/cel-go/cel"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/events"
)

func event(metadata string) *Event {
	return NewEvent(events.Event{
		ID: "pay-1", CompanyUUID: uuid.UUID{15: 1}, Type: "PAYMENT_PAID",
		Timestamp: time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC), Metadata: []byte(metadata),
	})
}

const payment = `{"amount":"100.10","fee":0.30,"count":3,"huge":1e9999999,"tags":["travel","eu"],"card":{"last4":"4711"},"none":null}`

func TestMatches(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`event == "PAYMENT_PAID"`: true,
		`event == "PAYMENT_PAID" && decimal(metadata.amount) >= decimal("100")`: true,
		`decimal(metadata.amount) > decimal("100.10")`:                          false,
		`decimal(metadata.amount) == decimal("100.1")`:                          true,
		`decimal(metadata.fee) == decimal("0.3")`:                               true, // as a float it is not
		`metadata.fee < decimal("0.31") && decimal("0.29") < metadata.fee`:      true,
		`metadata.count == 3 && decimal(metadata.count) <= decimal("3.0")`:      true,
		`metadata.fee < 1`: true,
		`"eu" in metadata.tags && metadata.card.last4.endsWith("11")`:     true,
		`metadata.tags.exists(t, t.startsWith("tra"))`:                    true,
		`has(metadata.amount) && !has(metadata.refund)`:                   true,
		`timestamp >= timestamp("2026-11-22T00:00:00Z") && id == "pay-1"`: true,
		`companyUuid == "00000000-0000-0000-0000-000000000001"`:           true,
		`metadata.none == null`:                                           true,
		`has(metadata.refund) && decimal(metadata.refund) > decimal("0")`: false,
		`event in ["A", "B"]`:                                             false,
		`metadata.size() == 7`:                                            true,
		`metadata.refund == 1 || true`:                                    true,
		`!(metadata.refund == 1 && false)`:                                true,
		`metadata.tags.map(t, t + "!") == ["travel!", "eu!"]`:             true,
		`metadata.tags.filter(t, t != "eu").size() == 1`:                  true,
		`metadata.tags.exists_one(t, t == "eu")`:                          true,
		`metadata.card.all(key, key == "last4")`:                          true,
		`metadata["card"]["last4"] == "4711" && metadata.tags[1] == "eu"`: true,
		`{"a": 1, "b": [2.0]} == {"b": [2], "a": 1e0}`:                    true,
		`id.matches("^pay-[0-9]+$") && !event.contains("CARD")`:           true,
		`timestamp.getHours() == 9 && timestamp.getHours("+02:00") == 11`: true,
		`timestamp + duration("1h") > timestamp("2026-11-22T09:59:59Z")`:  true,
		`timestamp - timestamp("2026-11-22T08:00:00Z") == duration("1h")`: true,
		`string(metadata.count) + id == "3pay-1"`:                         true,
		`has(metadata.refund) ? metadata.refund > 1 : event != ""`:        true,
	} {
		x, err := Compile(t.Context(), Filter, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.Matches(t.Context(), event(payment)); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestCompileSaysWhereItIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`event ==`:                       "line 1, column 9: Syntax error",
		"event == 'A' &&\n  evnt":        "line 2, column 3: undeclared reference to 'evnt'",
		`event`:                          "must be true or false, and is of the type string",
		`metadata.amount > decimal`:      "line 1",
		`event > 5`:                      "line 1, column 7: found no matching overload",
		`timestamp > 5`:                  "line 1, column 11: found no matching overload",
		`1 + "a" == 2`:                   "line 1, column 3: found no matching overload",
		`decimal("1/3") > 0`:             "line 1, column 8: \"1/3\" is not a decimal number",
		`decimal("0x10") > 0`:            "line 1, column 8: \"0x10\" is not a decimal number",
		`decimal("1e401") > 0`:           "line 1, column 8: \"1e401\" has more than 34 digits or an exponent beyond 400",
		`1 / 0 == 1`:                     "line 1, column 3: division by zero",
		`metadata.n % 0 == 1`:            "line 1, column 12: division by zero",
		`metadata.l[0.5] == ""`:          "line 1, column 11: the index of a list must be a whole number from 0 on",
		`metadata.l[-1] == ""`:           "line 1, column 11: the index of a list must be a whole number from 0 on",
		`timestamp.getHours("Mars") > 1`: "line 1, column 19: unknown time zone Mars",
		`{1: event} == {}`:               "line 1, column 1: the key of a map must be a string",
		`timestamp("today") < timestamp`: "line 1, column 10: \"today\" is not a time",
		`id.matches("(")`:                "line 1, column 12: error parsing regexp",
		`id.matches(event)`:              "line 1, column 11: the regular expression of matches must be a string literal",
		`id.matches("(a{0,30}){0,30}")`:  "line 1, column 12: the regular expressions are too large",
		`id.matches("\\pL\\pL") || id.matches("\\pL\\pL") || id == "a"`: "line 1, column 38: the regular expressions are too large",
		`id.matches("` + strings.Repeat("a", 257) + `")`:                "line 1, column 12: a regular expression has at most 256 bytes",
		strings.Repeat("(", 25) + "1" + strings.Repeat(")", 25):         "line 1, column 25: nested more than 24 deep",
		strings.Repeat("!", 25) + "true":                                "line 1, column 25: nested more than 24 deep",
		`1 in [` + strings.Repeat("1,", 500) + `1]`:                     "line 1, column",
		`[1]` + strings.Repeat(".map(a,a)", 9) + ` == []`:               "line 1, column",
		`[1].map(a, [a].map(b, [b].map(c, [c].map(d, d)))) == []`:       "line 1, column 41: macros nested more than 3 deep",
		`12345678901234567890 > 1`:                                      "line 1, column 1: a whole number of more than 18 digits is written with a point",
		``:                                                              "line 1",
		strings.Repeat(" ", 1995) + `1 == 1`:                            "must be at most 2000 characters",
	} {
		if _, err := Compile(t.Context(), Filter, text); err == nil || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 200 {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// An expression that fails on an event does not match it.
func TestMatchesFails(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`metadata.refund == 1`:                  "no such key: refund",
		`metadata.amount`:                       "neither true nor false",
		`decimal(metadata.huge) > decimal("0")`: "not a decimal number of at most 34 digits",
		`metadata.huge == 1`:                    "not a decimal number of at most 34 digits",
		`metadata.tags[metadata.amount] == ""`:  "no such overload",
		`double(metadata.long) > 0.0`:           "is not a number",
		`bool(metadata.long)`:                   "is neither true nor false",
		`timestamp(metadata.long) > timestamp`:  "is not a time",
		`timestamp.getHours(metadata.long) > 1`: "time zone is too long",
		`timestamp.getHours(metadata.zone) > 1`: "unknown time zone",
		`metadata.tags[2] == ""`:                "no element 2 in a list of 2",
		`1 / (metadata.count - 3) > 0`:          "division by zero",
		`decimal(metadata.tags) > decimal("0")`: "no such overload",
		`metadata.amount > 5`:                   "no such overload",
	} {
		x, err := Compile(t.Context(), Filter, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		long := strings.TrimSuffix(payment, "}") + `,"zone":"Mars","long":"` + strings.Repeat("1", maxText+1) + `"}`
		if got, err := x.Matches(t.Context(), event(long)); got || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, %v", text, got, err)
		}
	}
	x, err := Compile(t.Context(), Filter, `has(metadata.amount)`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := x.Matches(t.Context(), event(`{"amount":`)); got || err == nil {
		t.Errorf("damaged metadata: %v, %v", got, err)
	}
}

// Filters of a company share what is decoded of an event.
func BenchmarkMatches(b *testing.B) {
	x, err := Compile(b.Context(), Filter, `event == "PAYMENT_PAID" && decimal(metadata.amount) >= decimal("100")`)
	if err != nil {
		b.Fatal(err)
	}
	e := event(payment)
	for b.Loop() {
		if ok, err := x.Matches(b.Context(), e); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// A number compares by its value, however it is written.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text, metadata string
		want           bool
	}{
		{`metadata.amount >= 99.99`, `{"amount":150.25}`, true},
		{`metadata.amount >= 99.99`, `{"amount":150.0}`, true},
		{`metadata.amount >= 99.99`, `{"amount":99.98}`, false},
		{`metadata.amount != 0.5`, `{"amount":0.5}`, false},
		{`metadata.amount == 0.5`, `{"amount":5e-1}`, true},
		{`double(metadata.amount) > 0.25`, `{"amount":0.5}`, true},
		{`double(metadata.amount) == 0.1`, `{"amount":0.1}`, true},
		{`metadata.amount >= decimal('0.5')`, `{"amount":100}`, true},
		{`100 == 100.0 && 100.0 == 1e2 && 0x64 == 100u`, `{}`, true},
		{`0.1 + 0.2 == 0.3`, `{}`, true},
		{`double(0.1) + double(0.2) == double(0.3)`, `{}`, false},
		{`metadata.n == 9007199254740993`, `{"n":9007199254740993}`, true},
		{`metadata.n == 9007199254740992`, `{"n":9007199254740993}`, false},
		{`metadata.n > 123456789012345678901234567890.1233`, `{"n":123456789012345678901234567890.1234}`, true},
		{`metadata.n == 12345678901234567890.0`, `{"n":12345678901234567890}`, true},
		{`metadata.n == - 1.50`, `{"n":-1.5}`, true},
		{`7 / 2 == 3.5 && int(3.9) == 3 && int(-3.9) == -3 && 7 % 4 == 3`, `{}`, true},
		{`metadata.n in [1, 2.0]`, `{"n":2}`, true},
		{`metadata.tags[metadata.n - 1.0] == "b" && size(metadata.tags) < 2.5`, `{"n":2,"tags":["a","b"]}`, true},
		{`decimal(metadata.s) * 3 == 0.3 && string(1e2) == "100" && string(0.10) == "0.1"`, `{"s":"0.10"}`, true},
		{`metadata.n == "5"`, `{"n":5}`, false},
	} {
		x, err := Compile(t.Context(), Filter, test.text)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		if got, err := x.Matches(t.Context(), event(test.metadata)); got != test.want || err != nil {
			t.Errorf("%s on %s: %v, %v", test.text, test.metadata, got, err)
		}
	}
}

// hostile are filters that try to take time or memory. Each is refused or ends within its limits.
var hostile = []string{
	`[metadata.s]` + strings.Repeat(".map(a,a+a)", 24) + `.size()>0`,
	`[metadata.s]` + strings.Repeat(".map(a,a+a)", 8) + `.size()>0`,
	`[[1]]` + strings.Repeat(".map(a,a+a)", 55) + `.all(a,a==a)`,
	`[[1]]` + strings.Repeat(".map(a,a+a)", 7) + `.all(a,a==a)`,
	`[[1]]` + strings.Repeat(".map(a,[a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a])", 7) + `.all(a,a==a)`,
	`id.matches("` + strings.Repeat("a{0,999}", 230) + `b")`,
	`id.matches("` + strings.Repeat("a{0,15}", 30) + `b")`,
	`metadata.s.matches("(x+x+)+y|` + strings.Repeat(".?", 100) + `y")`,
	`metadata.s.matches(metadata.r)`,
	`metadata.l.all(a, metadata.l.all(b, metadata.l.all(c, a + b + c > 0)))`,
	`metadata.l.map(a, metadata.l.map(b, metadata.l)).size() > 0`,
	`metadata.l.map(a, metadata) == metadata.l.map(a, metadata)`,
	`metadata.l.all(a, metadata.s.contains(metadata.s + "y") || true)`,
	`metadata.l.all(a, timestamp.getHours("Europe/Paris") >= 0)`,
	`metadata.l.all(a, metadata.far[0] + metadata.far[1] > 0)`,
	`metadata.l.all(a, double(metadata.n) > 0.0 || true)`,
	`metadata.l.all(a, bool(metadata.n) || true)`,
	`metadata.l.all(a, timestamp(metadata.n) > timestamp || true)`,
	`metadata.l.all(a, timestamp.getHours(metadata.n) > 0 || true)`,
	`id.matches(r"\pL") || ` + strings.Repeat(`id.matches(r"\pL\pL\pL\pL\pL") || `, 54) + "true",
	`id.matches("a{0,240}")`, `id.matches("^(?:a|b|[^c]){0,60}$")`, `id.matches(r"\pL\pL\pL.")`,
	`id.matches(r"^\pL\pL\pL$")`, `id.matches(r"` + strings.Repeat("^", 253) + `\pL")`, `id.matches(r"\pL[a-y0-8_]{0,120}\pN\pM")`,
	strings.Repeat("!", 1990) + "true",
	strings.Repeat("(", 990) + "true" + strings.Repeat(")", 990),
	strings.Repeat("[", 990) + strings.Repeat("]", 990) + " == []",
	strings.Repeat("true ? true : ", 140) + "true",
	strings.Repeat("1+", 990) + "1 > 0",
	strings.Repeat("true||", 330) + "true",
	"metadata" + strings.Repeat(".a", 980),
	"metadata" + strings.Repeat("[0]", 600),
	"1 in [" + strings.Repeat("1,", 990) + "1]",
	"{" + strings.Repeat(`"":1,`, 390) + `"":1} == {}`,
	strings.Repeat("has(metadata.a)&&", 110) + "true",
	strings.Repeat("-", 1990) + "1 > 0",
	`"` + strings.Repeat(")", 650) + `" == "" || ` + strings.Repeat("(", 650) + "true" + strings.Repeat(")", 650), // brackets in a string
	strings.Repeat(`(")"==`, 330),
	strings.Repeat("!\n", 990) + "true",
	strings.Repeat("-\t", 990) + "1 > 0",
	strings.Repeat("a.b(", 490),
	strings.Repeat("\"", 1999),
	strings.Repeat("[{", 12) + strings.Repeat(" ,", 900),
}

// hostileEvent has a text of digits beside what it needs not to be large.
func hostileEvent(digits int) *Event {
	return event(`{"s":"` + strings.Repeat("x", 1000) + `","r":"(a{0,999}){1}","n":"` + strings.Repeat("1", digits) + `","far":[1e399,1e-399],"l":[` +
		strings.Repeat("1,", 999) + `1]}`)
}

// No filter allocates more than 8 MiB when it is compiled, and an evaluation makes at most what its
// limits allow: bytes twice, for slices that grow, and what the steps themselves allocate.
func TestHostileFiltersAreBounded(t *testing.T) {
	if _, err := Compile(t.Context(), Filter, "true"); err != nil { // makes the environment
		t.Fatal(err)
	}
	for _, text := range hostile {
		var x *Expression
		began := time.Now()
		bytes := allocated(func() { x, _ = Compile(t.Context(), Filter, text) })
		took := time.Since(began)
		if bytes > 8<<20 {
			t.Errorf("%.60s: compiling allocates %d bytes", text, bytes)
		}
		if x == nil {
			t.Logf("%-60.60s refused after %v, %d KiB", text, took, bytes>>10)
			continue
		}
		e := hostileEvent(200_000)
		if err := e.decode(); err != nil {
			t.Fatal(err)
		}
		r := &run{ctx: t.Context(), event: e, vars: make([]value, x.slots)}
		var err error
		began = time.Now()
		used := allocated(func() { _, err = x.root.eval(r) })
		t.Logf("%-60.60s compiled in %v, %d KiB; %d steps in %v, %d KiB: %v", text, took, bytes>>10, r.steps, time.Since(began), used>>10, err)
		r.end()
		if r.steps > maxSteps || used > 8<<20 {
			t.Errorf("%.60s: %d steps, %d bytes", text, r.steps, used)
		}
	}
}

func allocated(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// An evaluation ends with its context, also while it waits for its turn.
func TestMatchesEndsWithItsContext(t *testing.T) {
	x, err := Compile(t.Context(), Filter, `metadata.l.all(a, metadata.l.all(b, a + b > 0))`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Matches(ctx, hostileEvent(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	for range cap(heavy.all) {
		heavy.all <- struct{}{}
	}
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := x.Matches(ctx, hostileEvent(0))
		ended <- err
	}()
	light, err := Compile(t.Context(), Filter, `metadata.l.size() == 1000`)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := light.Matches(t.Context(), hostileEvent(0)); !ok || err != nil {
		t.Errorf("a light filter beside heavy ones: %v, %v", ok, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("while it waited: %v", err)
	}
	for range cap(heavy.all) {
		<-heavy.all
	}
	if _, err := x.Matches(t.Context(), hostileEvent(0)); !errors.Is(err, errSteps) {
		t.Errorf("alone: %v", err)
	}
}

// A request gives up waiting for its turn to compile. What deliveries need has turns of its own.
func TestCompileEndsWithItsContext(t *testing.T) {
	compiling <- struct{}{}
	defer func() { <-compiling }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compile(ctx, Filter, "true"); !errors.Is(err, context.Canceled) {
		t.Errorf("while it waited: %v", err)
	}
	if _, err := Reload(Filter, "true"); err != nil {
		t.Errorf("a stored filter: %v", err)
	}
}

// Without numbers, on which the two differ on purpose, expressions mean what they mean to cel-go.
func TestExpressionsMeanWhatCELSays(t *testing.T) {
	const metadata = `{"s":"payment paid","t":"Äpfel","e":"","b":true,"l":["a","b","b"],"o":{"k":"v","n":{"k":"w"}},"z":null}`
	var fields map[string]any
	if err := json.Unmarshal([]byte(metadata), &fields); err != nil {
		t.Fatal(err)
	}
	env, err := cel.NewEnv(cel.Variable("id", cel.StringType), cel.Variable("metadata", cel.DynType), cel.Variable("timestamp", cel.TimestampType))
	if err != nil {
		t.Fatal(err)
	}
	e := event(metadata)
	for _, text := range []string{
		`metadata.s == "payment paid"`, `metadata.s != metadata.t`, `metadata.s < metadata.t`, `metadata.t >= "Ä"`, `metadata["s"] == metadata.s`,
		`metadata.s.startsWith("pay") && metadata.s.endsWith("d")`, `metadata.s.contains("nt p")`, `metadata.s.matches("^pay.*d$")`, `metadata.t.matches("p+f")`,
		`"a" in metadata.l`, `"c" in metadata.l || metadata.b`, `"k" in metadata.o`, `metadata.o.n.k == "w"`, `metadata.o == {"k": "v", "n": {"k": "w"}}`,
		`has(metadata.s)`, `has(metadata.x)`, `has(metadata.o.n)`, `has(metadata.z)`, `metadata.z == null`, `metadata.x == "a"`, `metadata.o.x.y == "a"`,
		`!metadata.b`, `metadata.b ? metadata.s == "" : true`, `metadata.x == "a" || true`, `false && metadata.x == "a"`, `metadata.x == "a" && false`, `metadata.x == "a" || false`,
		`metadata.l.all(x, x != "c")`, `metadata.l.exists(x, x == "b")`, `metadata.l.exists_one(x, x == "b")`, `metadata.l.exists_one(x, x == "a")`,
		`metadata.l.filter(x, x == "b") == ["b", "b"]`, `metadata.l.map(x, x + "!") == ["a!", "b!", "b!"]`, `metadata.l.all(x, metadata.o.exists(k, k == "n"))`,
		`metadata.l.exists(x, metadata.y == x)`, `metadata.l.all(x, x == "b" || metadata.y == x)`, `metadata.s + metadata.t == "payment paidÄpfel"`,
		`metadata.s == true`, `metadata.l == metadata.s`, `timestamp < timestamp("2100-01-01T00:00:00Z")`, `timestamp + duration("1h") > timestamp`,
	} {
		ast, issues := env.Compile(text)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", text, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		out, _, theirs := program.Eval(map[string]any{"id": e.of.ID, "metadata": fields, "timestamp": e.of.Timestamp})
		x, ours := Compile(t.Context(), Filter, text)
		var got bool
		if ours == nil {
			got, ours = x.Matches(t.Context(), e)
		}
		if (theirs != nil) != (ours != nil) || ours == nil && out.Value() != got {
			t.Errorf("%s: %v, %v; cel-go says %v, %v", text, got, ours, out, theirs)
		}
	}
}

// FuzzFilter compiles an expression and evaluates it on an event, within the limits, twice alike. Its result is JSON.
func FuzzFilter(f *testing.F) {
	for _, text := range hostile {
		f.Add(text, `{"s":"x","l":[1,2]}`)
	}
	f.Add(`event == "PAYMENT_PAID" && decimal(metadata.amount) >= decimal("100")`, payment)
	f.Add(`metadata.tags.exists(t, t.startsWith("tra")) || timestamp.getHours("+01:00") > 1`, payment)
	f.Add(`string(double(metadata.fee)) + string(timestamp) in {"a": int(1.5)}`, payment)
	f.Add(`{"text": event + string(metadata.fee), "all": metadata, "at": timestamp}`, payment)
	f.Fuzz(func(t *testing.T, text, metadata string) {
		x, err := Compile(t.Context(), Filter, text)
		if err != nil {
			x, err = Compile(t.Context(), Transform, text)
		}
		if err != nil || len(metadata) > 1<<16 {
			return
		}
		e := event(metadata)
		if e.decode() != nil {
			return
		}
		var verdicts [2]string
		for i := range verdicts {
			r := &run{ctx: t.Context(), event: e, vars: make([]value, x.slots)}
			v, err := x.root.eval(r)
			if err == nil {
				body, err := encode(r, v)
				verdicts[i] = string(body)
				if len(body) > maxBody || err == nil && !jsontext.Value(body).IsValid() {
					t.Fatalf("not JSON: %.100s", body)
				}
			}
			r.end()
			if r.steps > maxSteps || r.made > maxMade && r.stopped == nil {
				t.Fatalf("%d steps, %d bytes", r.steps, r.made)
			}
		}
		if verdicts[0] != verdicts[1] {
			t.Fatal("two evaluations differ")
		}
	})
}

func TestCompiledFiltersAreAsSmallAsTheRegistryCounts(t *testing.T) { // not parallel: it measures the heap
	if _, err := Compile(t.Context(), Filter, "true"); err != nil { // makes the environment
		t.Fatal(err)
	}
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for _, text := range append([]string{`metadata.amount >= 99.99`, `metadata.s.matches("(a{0,9}){1}[[:alpha:]]+")`}, hostile...) {
		kept := make([]*Expression, 20)
		before := heap()
		for i := range kept {
			if kept[i], _ = Compile(t.Context(), Filter, text); kept[i] == nil {
				break // it is refused
			}
		}
		if each := (heap() - before) / len(kept); kept[0] != nil && each > Bytes(text) {
			t.Errorf("%.60s: %d bytes, counted as %d", text, each, Bytes(text))
		}
		runtime.KeepAlive(kept)
	}
}
