// Package expression evaluates the filters, transforms and order keys of subscribers: expressions of the Common
// Expression Language (CEL, https://cel.dev) over an event's record, such as
//
//	event == "PAYMENT_PAID" && metadata.amount >= 99.99
//	{"text": "Paid " + string(metadata.amount) + " EUR"}
//
// An expression sees the fields of the record: id, event, companyUuid, errorCode and errorMessage (strings),
// timestamp, and metadata. Numbers of the metadata and of the expression are decimals of at most
// 34 digits, which are compared by value. Only double(x) makes a binary number.
//
// cel-go parses and checks the types. The evaluation is ours, because the limit of cel-go counts a
// call only after it returned: one call can take all memory. Here the size of every operand is
// known before the call, and each step is counted.
package expression

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/types"
)

// Limits of an expression, checked before its types are.
const (
	maxLength  = 2000 // characters
	maxNodes   = 400
	maxDepth   = 24 // of nodes, and of brackets and operators before a value in the text
	maxMacros  = 8  // all, exists, exists_one, filter, map
	maxNesting = 3  // of macros
)

// Limits of one evaluation.
const (
	maxSteps = 20_000  // some 2 ms
	maxMade  = 1 << 20 // bytes of the strings and lists that it makes
	// lightSteps is what an evaluation may do without a turn.
	lightSteps = 2_000
	// lightBytes is the size of the metadata that are decoded without a turn.
	lightBytes = 4 << 10
	// checkSteps is how often the context is read.
	checkSteps = 500
)

// compiling and reloading bound the processors and the memory that compiling takes, one expression at a
// time each, in the order of asking. Expressions that companies try do not delay those that deliveries need.
var compiling, reloading = make(chan struct{}, 1), make(chan struct{}, 1)

// heavy gives turns to evaluations of more than lightSteps, of more than lightBytes of metadata, or whose result is
// large. So these, of all companies together, take at most a quarter of the processors, or one.
var heavy = newTurns(max(1, runtime.GOMAXPROCS(0)/4))

// Kind is what an expression is for.
type Kind int

// The kinds of expressions.
const (
	Filter    Kind = iota // whether an event is delivered: true or false
	Transform             // the body of a delivery: a map
	Key                   // which deliveries must not overtake each other: a string, number, boolean or time
)

// check returns an error unless a result may have the type.
func (k Kind) check(t *cel.Type) error {
	switch {
	case t.IsExactType(cel.DynType):
	case k == Filter && !t.IsExactType(cel.BoolType):
		return fmt.Errorf("must be true or false, and is of the type %s", t)
	case k == Transform && t.Kind() != types.MapKind:
		return fmt.Errorf("must be a map, such as {\"text\": event}, and is of the type %s", t)
	case k == Key && (t.Kind() == types.MapKind || t.Kind() == types.ListKind):
		return fmt.Errorf("must be a string, number, boolean or time, such as metadata.cardUuid, and is of the type %s", t)
	}
	return nil
}

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	root     node
	slots    int  // variables of macros
	metadata bool // it reads the metadata
}

// Compile compiles an expression. The error has the line and column of the mistake, or is that of ctx, which
// may end before Compile has its turn.
func Compile(ctx context.Context, kind Kind, text string) (*Expression, error) {
	return compile(ctx, compiling, kind, text)
}

// Reload is Compile for an expression that was accepted before. Its turns are not those of Compile.
func Reload(kind Kind, text string) (*Expression, error) {
	return compile(context.Background(), reloading, kind, text)
}

func compile(ctx context.Context, turns chan struct{}, kind Kind, text string) (*Expression, error) {
	if utf8.RuneCountInString(text) > maxLength {
		return nil, fmt.Errorf("must be at most %d characters", maxLength)
	}
	if err := scan(text); err != nil {
		return nil, err
	}
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("make the environment of expressions: %w", err)
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return nil, firstOf(issues)
	}
	p := &planner{tree: parsed.NativeRep(), text: []rune(text)}
	if err := p.checkLimits(); err != nil {
		return nil, err
	}
	p.numbersToDecimals()
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, firstOf(issues)
	}
	if err := kind.check(checked.OutputType()); err != nil {
		return nil, err
	}
	root, err := p.plan(checked.NativeRep().Expr())
	if err != nil {
		return nil, err
	}
	return &Expression{root: root, slots: p.slots, metadata: p.metadata}, nil
}

// What a compiled expression takes.
const (
	characterBytes = 64       // for each byte of its text
	regexpBytes    = 24 << 10 // of all its regular expressions
)

// Bytes is the most memory, in bytes, that an expression takes once it is compiled.
func Bytes(text string) int {
	n := characterBytes * len(text)
	if strings.Contains(text, "matches") {
		n += regexpBytes
	}
	return n
}

// scan refuses most deep nesting before the parser takes time and memory for it. Text in quotation
// marks counts too, so brackets in a string can hide others: there the parser's own limit of
// recursion holds.
func scan(text string) error {
	depth, prefix := 0, 0
	for i, c := range text {
		switch c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		if c == '!' || c == '-' {
			prefix++
		} else if c != ' ' {
			prefix = 0
		}
		if depth > maxDepth || prefix > maxDepth {
			line, column := position([]rune(text[:i]))
			return fmt.Errorf("line %d, column %d: nested more than %d deep", line, column, maxDepth)
		}
	}
	return nil
}

// position returns the line and the column, from 1, of what follows the text.
func position(before []rune) (line, column int) {
	line, column = 1, 1
	for _, c := range before {
		column++
		if c == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

func firstOf(issues *cel.Issues) error {
	first := issues.Errors()[0]
	what, _, _ := strings.Cut(first.Message, ", expecting") // ANTLR lists all tokens that would be valid
	what, _, _ = strings.Cut(what, " expecting {")
	if what == "invalid int literal" {
		what = "a whole number of more than 18 digits is written with a point, such as 10000000000000000000.0"
	}
	return at(first.Location, "%.150s", what)
}

func at(place common.Location, format string, args ...any) error {
	return fmt.Errorf("line %d, column %d: %w", place.Line(), place.Column()+1, fmt.Errorf(format, args...))
}

var (
	errNotBool = errors.New("the result is neither true nor false")
	errNotMap  = errors.New("the result is not a map")
	errNotKey  = errors.New("the result is not a string, number, boolean or time")
)

// Matches evaluates a filter. It fails when the event lacks a field that the expression
// names, when the evaluation takes too many steps or makes too much, and when ctx ends.
func (x *Expression) Matches(ctx context.Context, e *Event) (matches bool, err error) {
	err = x.eval(ctx, e, func(_ *run, v value) error {
		var ok bool
		if matches, ok = v.(bool); !ok {
			return errNotBool
		}
		return nil
	})
	return matches, err
}

// Object evaluates a transform, and returns the map as JSON of at most 256 KiB, always the same for an event: its
// members are sorted by name, decimals have no exponent, times are as in RFC 3339. It fails as Matches does, and when the
// result is not a map, is too long or cannot be JSON.
func (x *Expression) Object(ctx context.Context, e *Event) (body []byte, err error) {
	err = x.eval(ctx, e, func(r *run, v value) (err error) {
		if _, ok := v.(*object); !ok {
			return errNotMap
		}
		body, err = encode(r, v)
		return err
	})
	return body, err
}

// Text evaluates an order key, and returns it as JSON. Equal values have the same text. It fails as Matches does, and when
// the result is null, a list or a map.
func (x *Expression) Text(ctx context.Context, e *Event) (text string, err error) {
	err = x.eval(ctx, e, func(r *run, v value) error {
		switch v.(type) {
		case nil, *list, *object:
			return errNotKey
		}
		body, err := encode(r, v)
		text = string(body)
		return err
	})
	return text, err
}

// eval evaluates the expression, and calls use with the result.
func (x *Expression) eval(ctx context.Context, e *Event, use func(*run, value) error) error {
	r := &run{ctx: ctx, event: e, vars: make([]value, x.slots)}
	defer r.end()
	if x.metadata {
		if err := r.decode(); err != nil {
			return err
		}
	}
	v, err := x.root.eval(r)
	if err != nil {
		return err
	}
	return use(r, v)
}

// run is one evaluation.
type run struct {
	ctx     context.Context //nolint:containedctx // a run is one call of Matches or Object
	event   *Event
	vars    []value // the variables of macros
	steps   int
	made    int // bytes
	checked int // steps when the context was read
	turn    bool
	stopped error // the evaluation must end: no operator may go on after this error
}

var (
	errSteps = fmt.Errorf("the expression takes more than %d steps", maxSteps)
	errMade  = fmt.Errorf("the expression makes more than %d bytes", maxMade)
)

// spend counts steps before they are done.
func (r *run) spend(steps int) error {
	if r.stopped != nil {
		return r.stopped
	}
	if steps > maxSteps-r.steps {
		r.stopped = errSteps
		return r.stopped
	}
	r.steps += steps
	if r.steps-r.checked < checkSteps || r.ctx == nil {
		return nil
	}
	r.checked = r.steps
	if r.steps > lightSteps {
		return r.takeTurn()
	}
	r.stopped = r.ctx.Err()
	return r.stopped
}

// takeTurn waits for the turn of the evaluation, if it has none.
func (r *run) takeTurn() error {
	if !r.turn && heavy.enter(r.ctx, r.event.of.CompanyUUID) == nil {
		r.turn = true
	}
	r.stopped = r.ctx.Err()
	return r.stopped
}

// decode decodes the metadata of the event, in a turn if they are large.
func (r *run) decode() error {
	if r.event.metadata == nil && len(r.event.of.Metadata) > lightBytes {
		if err := r.takeTurn(); err != nil {
			return err
		}
	}
	return r.event.decode()
}

// making counts bytes before they are taken, and the steps of writing them.
func (r *run) making(bytes int) error {
	if r.stopped == nil && bytes > maxMade-r.made {
		r.stopped = errMade
	}
	r.made += bytes
	return r.spend(bytes / stepBytes)
}

func (r *run) end() {
	if r.turn {
		heavy.leave(r.event.of.CompanyUUID)
		runtime.Gosched() // else the next evaluation follows at once, until the scheduler stops them after 10 ms
	}
}

// environment has the names and functions that expressions may use. It is made on first use.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	d, s, b := numberType, cel.StringType, cel.BoolType
	when, long := cel.TimestampType, cel.DurationType
	a, k := cel.TypeParamType("A"), cel.TypeParamType("B")
	listOf, mapOf := cel.ListType(a), cel.MapType(a, k)
	options := []cel.EnvOption{
		cel.Macros(cel.StandardMacros...),
		cel.ParserExpressionSizeLimit(maxLength),
		cel.Variable("id", s), cel.Variable("event", s), cel.Variable("companyUuid", s),
		cel.Variable("errorCode", s), cel.Variable("errorMessage", s),
		cel.Variable("timestamp", when), cel.Variable("metadata", cel.DynType),
	}
	declare := func(name string, result *cel.Type, member bool, args ...*cel.Type) {
		id := fmt.Sprint(name, args)
		options = append(options, cel.Function(name, cel.Overload(id, args, result)))
		if member {
			options = append(options, cel.Function(name, cel.MemberOverload("member "+id, args, result)))
		}
	}
	for _, name := range []string{"_==_", "_!=_"} {
		declare(name, b, false, a, a)
	}
	for _, name := range []string{"_<_", "_<=_", "_>_", "_>=_"} {
		for _, t := range []*cel.Type{d, s, b, when, long} {
			declare(name, b, false, t, t)
		}
	}
	for _, name := range []string{"_+_", "_-_", "_*_", "_/_", "_%_"} {
		declare(name, d, false, d, d)
	}
	for _, o := range []struct {
		name   string
		member bool
		result *cel.Type
		args   []*cel.Type
	}{
		{"!_", false, b, []*cel.Type{b}},
		{"_&&_", false, b, []*cel.Type{b, b}},
		{"_||_", false, b, []*cel.Type{b, b}},
		{"_?_:_", false, a, []*cel.Type{b, a, a}},
		{"@not_strictly_false", false, b, []*cel.Type{b}},
		{"_[_]", false, a, []*cel.Type{listOf, d}},
		{"_[_]", false, k, []*cel.Type{mapOf, a}},
		{"@in", false, b, []*cel.Type{a, listOf}},
		{"@in", false, b, []*cel.Type{a, mapOf}},
		{"-_", false, d, []*cel.Type{d}},
		{"_+_", false, s, []*cel.Type{s, s}},
		{"_+_", false, listOf, []*cel.Type{listOf, listOf}},
		{"_+_", false, when, []*cel.Type{when, long}},
		{"_+_", false, when, []*cel.Type{long, when}},
		{"_+_", false, long, []*cel.Type{long, long}},
		{"_-_", false, when, []*cel.Type{when, long}},
		{"_-_", false, long, []*cel.Type{when, when}},
		{"_-_", false, long, []*cel.Type{long, long}},
		{"size", true, d, []*cel.Type{s}},
		{"size", true, d, []*cel.Type{listOf}},
		{"size", true, d, []*cel.Type{mapOf}},
		{"matches", true, b, []*cel.Type{s, s}},
		{"dyn", false, cel.DynType, []*cel.Type{a}},
	} {
		declare(o.name, o.result, o.member, o.args...)
	}
	for _, name := range []string{"contains", "startsWith", "endsWith"} {
		options = append(options, cel.Function(name, cel.MemberOverload(name, []*cel.Type{s, s}, b)))
	}
	for name, to := range map[string]struct {
		result *cel.Type
		from   []*cel.Type
	}{
		"decimal":   {d, []*cel.Type{d, s}},
		"double":    {d, []*cel.Type{d, s}},
		"int":       {d, []*cel.Type{d, s, when}},
		"string":    {s, []*cel.Type{s, d, b, when, long}},
		"bool":      {b, []*cel.Type{b, s}},
		"timestamp": {when, []*cel.Type{when, s}},
		"duration":  {long, []*cel.Type{long, s}},
	} {
		for _, from := range to.from {
			declare(name, to.result, false, from)
		}
	}
	for name := range parts {
		options = append(options, cel.Function(name,
			cel.MemberOverload(name, []*cel.Type{when}, d), cel.MemberOverload(name+"_in", []*cel.Type{when, s}, d)))
	}
	for name := range units {
		options = append(options, cel.Function(name, cel.MemberOverload(name+"_of", []*cel.Type{long}, d)))
	}
	return cel.NewCustomEnv(options...)
})

// numberType is the type of decimals and of what double makes: they mix.
var numberType = types.NewOpaqueType("number")
