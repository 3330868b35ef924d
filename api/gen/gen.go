// Package gen holds the types and the server interface generated from
// api/openapi.yaml, which is the source of both. By the files in templates, a handler gets
// its parameters and its decoded body, and returns its answer. Do not edit openapi.gen.go.
package gen

//go:generate go tool -modfile=../../tools.mod oapi-codegen -config config.yaml -o openapi.gen.go ../openapi.yaml
