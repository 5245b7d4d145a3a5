// Package schemas holds the one description of each tool, and the one function that decides whether a call's arguments fit it.
//
// # One file per tool
//
// NAME.json is written by hand and embedded. It holds the tool's name, description, annotations, whether it can change
// something (mutates), its inputSchema, and limits that the schema subset has no word for. Everything else that speaks
// about arguments is made from these files: tools/list, the dispatcher's table, exports for other frameworks, the words
// of an error. Order is that of the slice order in table.go, and never changes: clients cache prompts by it.
//
// A schema is flat and keeps to the keywords that every client takes: type, properties, required, description, enum (of
// strings), items, minimum, maximum, additionalProperties:false. There is no $ref, no union and no default; a default is
// said in the description. The rendered list of tools is at most 6,000 bytes, [Instructions] at most 2,048 characters.
// Descriptions are instructions to a model, so each sentence in them is true of the tools and tested there.
//
// # One judge
//
// [Validate] takes the bytes of a call's arguments as they came and gives back normalised arguments, or *[Invalid]. It
// works in four steps, each in its own file:
//
//   - decode.go reads the JSON strictly (RFC 8259): what encoding/json forgives is refused here. Invalid UTF-8, halves of
//     surrogate pairs, a key given twice, data after the end, nesting deeper than 16 and more than 10,000 values are
//     faults. The last two bound what a hostile call can cost; its size in bytes is bounded by the transport.
//   - convert.go takes a member that is null for absent (OpenAI's strict mode sends null for each optional argument), and
//     turns "true", "12" and 2.0 into true, 12 and 2 where the schema wants a boolean or an integer and nothing else could
//     be meant. Integers stay exact: none is ever held in a floating-point number.
//   - the compiled schema decides (github.com/santhosh-tekuri/jsonschema/v6, draft 2020-12, behind table.go alone; it can
//     load nothing that is not embedded).
//   - explain.go says in plain words what was wrong, with the path of the fault and, for an unknown argument, the name that
//     was probably meant.
//
// # Promises
//
// Validate never panics, has no effect and may be called from any number of goroutines. What it returns is a JSON object with
// sorted keys in which each integer fits an int64, and it validates again to the same bytes. Faults are sorted, at most 20,
// and their text is bounded and printable whatever the arguments held, so it can be shown to a model and kept in a log.
// The package keeps nothing on disk and knows no other package of this module.
package schemas
