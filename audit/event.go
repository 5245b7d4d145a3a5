package audit

// Event names what a record is about.
type Event string

// The events of the log. A name is never reused for something else.
const (
	EvServerStart Event = "server.start"
	EvServerStop  Event = "server.stop"

	EvDaemonStart Event = "daemon.start"
	EvDaemonStop  Event = "daemon.stop"

	EvCallIntent  Event = "call.intent"  // a tool is about to change something
	EvCallOutcome Event = "call.outcome" // what came of it
	EvCallRefused Event = "call.refused" // refused before any effect; unknown tools and unreadable arguments too
	EvCallRead    Event = "call.read"    // a tool that only reads, with its result

	EvImageCreate     Event = "image.create"
	EvImagePut        Event = "image.put"
	EvImageGet        Event = "image.get"
	EvImageRm         Event = "image.rm"
	EvImageCheckpoint Event = "image.checkpoint"
	EvImageRestore    Event = "image.restore"
	EvImageUndo       Event = "image.undo"
	EvImageFork       Event = "image.fork"
	EvImageImport     Event = "image.import"
	EvImageExport     Event = "image.export"
	EvImageGC         Event = "image.gc"
	EvImageOutbox     Event = "image.outbox" // a folder of a person is joined to the disk, or given what the disk has
	EvImageInbox      Event = "image.inbox"  // the same, to be put into the disk; what is put is an image.put

	EvOperatorToken Event = "operator.token"
	EvJobCancel     Event = "job.cancel"
	EvConfigSet     Event = "config.set"
	EvCatalogSet    Event = "catalog.set"
	EvBackup        Event = "backup"
	EvRestore       Event = "restore"

	EvLeaseAcquire Event = "lease.acquire"
	EvLeaseRenew   Event = "lease.renew"
	EvLeaseRelease Event = "lease.release"
	EvLeaseExpire  Event = "lease.expire"
	EvLeaseBreak   Event = "lease.break"
	EvLeaseAdopt   Event = "lease.adopt" // a disk from elsewhere, or newer than the state, was taken on

	EvEnvRequest Event = "env.request"
	EvEnvDecide  Event = "env.decide"
	EvEnvBind    Event = "env.bind"
	EvEnvBuild   Event = "env.build"
	EvEnvLock    Event = "env.lock"
	EvEnvImport  Event = "env.import"
	EvEnvRemove  Event = "env.remove"
	EvEnvPython  Event = "env.python"
	EvEnvRebase  Event = "env.rebase"
	EvEnvGC      Event = "env.gc"

	EvFsck      Event = "fsck"
	EvKeyRotate Event = "key.rotate"
	EvRetain    Event = "retain"
	EvAnchor    Event = "anchor"
	EvRecover   Event = "recover"    // settles an intent that a crash left open: committed, aborted or unknown
	EvClockStep Event = "clock.step" // written by the log itself, see [Options.Clock]
)

// StreamSystem is the stream of what belongs to no single image: the daemon,
// the configuration, environments. Every other stream is the UUID of an image.
const StreamSystem = "system"
