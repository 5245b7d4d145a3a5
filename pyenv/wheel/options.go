package wheel

// Options are the limits of a wheel and the place where it will be used. The
// zero value has the defaults.
type Options struct {
	MaxEntries int   // of the zip file, directories included; 60,000, and never more than 65,534
	MaxFile    int64 // bytes of one file; 512 MiB
	MaxTotal   int64 // bytes of all files together; 1 GiB
	MaxRatio   int64 // unpacked bytes per byte of the wheel, once there is 1 MiB of them; 200

	// Stdlib are the top-level modules of the target (sys.stdlib_module_names);
	// nil stands for those of CPython 3.12.
	Stdlib []string

	// Tool says that the wheel is a program for this server's own use, which no layer
	// ever has on its import path: it may have the name of a module of Python itself,
	// as pip has.
	Tool bool

	// Interpreter is what scripts are started with:
	// "/opt/mcp/python/bin/python3".
	Interpreter string

	// DirectURL becomes direct_url.json (PEP 610), for a wheel that came from
	// somewhere else than an index; nil writes none.
	DirectURL []byte

	// NoSync leaves it to the caller to make the files durable, who does so once
	// for several wheels with hostos.SyncTree.
	NoSync bool
}

func (o Options) withDefaults() Options {
	set := func(n *int64, def int64) {
		if *n <= 0 {
			*n = def
		}
	}
	set(&o.MaxFile, 512<<20)
	set(&o.MaxTotal, 1<<30)
	set(&o.MaxRatio, 200)
	if o.MaxEntries <= 0 {
		o.MaxEntries = 60_000
	}
	if o.Stdlib == nil {
		o.Stdlib = stdlib
	}
	if o.Interpreter == "" {
		o.Interpreter = "/opt/mcp/python/bin/python3"
	}
	return o
}

// ratioFloor is the size below which any ratio of compression will do.
const ratioFloor = 1 << 20
