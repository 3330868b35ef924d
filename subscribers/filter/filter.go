// Package filter evaluates the filters of subscribers: expressions of the Common
// Expression Language (CEL, https://cel.dev) over an event's record, such as
//
//	event == "PAYMENT_PAID" && decimal(metadata.amount) >= decimal("100")
//
// An expression sees the fields of the record: id, event and companyUuid (strings),
// timestamp, and metadata. A whole number of the metadata is a CEL int, any other number a
// decimal, without rounding. decimal(x) converts a string or a number to a decimal. Decimals
// are compared exactly.
package filter

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

const (
	maxLength = 2000
	// costLimit bounds one evaluation, in the units of CEL's cost model.
	costLimit = 10_000
)

// environment has the names that expressions may use. It is made on first use.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{
		cel.Variable("id", cel.StringType),
		cel.Variable("event", cel.StringType),
		cel.Variable("companyUuid", cel.StringType),
		cel.Variable("timestamp", cel.TimestampType),
		cel.Variable("metadata", cel.DynType),
		cel.Function("decimal", cel.Overload("to_decimal", []*cel.Type{cel.DynType}, decimalType, cel.UnaryBinding(toDecimal))),
	}
	for _, operator := range []string{operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals} {
		options = append(options, cel.Function(operator,
			cel.Overload("decimals"+operator, []*cel.Type{decimalType, decimalType}, cel.BoolType)))
	}
	return cel.NewEnv(options...)
})

// Expression is a compiled filter. It is safe for concurrent use.
type Expression struct{ program cel.Program }

// Compile compiles an expression. The error has the line and column of the mistake.
func Compile(text string) (*Expression, error) {
	if utf8.RuneCountInString(text) > maxLength {
		return nil, fmt.Errorf("must be at most %d characters", maxLength)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("make filter environment: %w", err)
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		what, _, _ := strings.Cut(first.Message, ", expecting") // ANTLR lists all tokens that would be valid
		what, _, _ = strings.Cut(what, " expecting {")
		return nil, fmt.Errorf("line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, what)
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("must be true or false, and is of the type %s", t)
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	return &Expression{program: program}, nil
}

var errNotBool = errors.New("the filter is neither true nor false")

// Matches evaluates the expression. It fails when the event lacks a field that the expression
// names, and when the evaluation exceeds the cost limit.
func (x *Expression) Matches(e *Event) (bool, error) {
	if err := e.decode(); err != nil {
		return false, err
	}
	value, _, err := x.program.Eval(e.values)
	if err != nil {
		return false, err
	}
	if matches, ok := value.(types.Bool); ok {
		return bool(matches), nil
	}
	return false, errNotBool
}
