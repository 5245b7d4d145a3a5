package sandboxrun

// newestCall is the highest number that was looked at when filterRules was
// written; it is the same on every architecture. A call that the kernel got
// later is answered like a kernel without it would, until somebody has.
// Numbers of the x32 interface of amd64 (from 0x40000000 on) are above it too.
const newestCall = 471

// archs are the architectures that have a filter, by the name that Go gives them.
var archs = map[string]arch{
	"amd64": {audit: 0xc000003e, column: 0},
	"arm64": {audit: 0xc00000b7, column: 1},
}

type arch struct {
	audit  uint32 // AUDIT_ARCH of the kernel
	column int    // of callNumbers
}

const none = -1 // the architecture does not have the call

// callNumbers are the numbers of the calls in filterRules, on amd64 and arm64.
var callNumbers = map[string][2]int{
	"acct":              {163, 89},
	"add_key":           {248, 217},
	"bpf":               {321, 280},
	"chmod":             {90, none},
	"chroot":            {161, 51},
	"clock_settime":     {227, 112},
	"clone":             {56, 220},
	"clone3":            {435, 435},
	"creat":             {85, none},
	"delete_module":     {176, 106},
	"fanotify_init":     {300, 262},
	"fanotify_mark":     {301, 263},
	"fchmod":            {91, 52},
	"fchmodat":          {268, 53},
	"fchmodat2":         {452, 452},
	"finit_module":      {313, 273},
	"fsconfig":          {431, 431},
	"fsmount":           {432, 432},
	"fsopen":            {430, 430},
	"fspick":            {433, 433},
	"init_module":       {175, 105},
	"io_uring_enter":    {426, 426},
	"io_uring_register": {427, 427},
	"io_uring_setup":    {425, 425},
	"ioctl":             {16, 29},
	"ioperm":            {173, none},
	"iopl":              {172, none},
	"kcmp":              {312, 272},
	"kexec_file_load":   {320, 294},
	"kexec_load":        {246, 104},
	"keyctl":            {250, 219},
	"listmount":         {458, 458},
	"listns":            {470, 470},
	"lsm_get_self_attr": {459, 459},
	"lsm_list_modules":  {461, 461},
	"lsm_set_self_attr": {460, 460},
	"mbind":             {237, 235},
	"memfd_secret":      {447, 447},
	"migrate_pages":     {256, 238},
	"mknod":             {133, none},
	"mknodat":           {259, 33},
	"modify_ldt":        {154, none},
	"mount":             {165, 40},
	"mount_setattr":     {442, 442},
	"move_mount":        {429, 429},
	"move_pages":        {279, 239},
	"mq_open":           {240, 180},
	"msgget":            {68, 186},
	"name_to_handle_at": {303, 264},
	"open":              {2, none},
	"open_by_handle_at": {304, 265},
	"open_tree":         {428, 428},
	"open_tree_attr":    {467, 467},
	"openat":            {257, 56},
	"openat2":           {437, 437},
	"perf_event_open":   {298, 241},
	"personality":       {135, 92},
	"pidfd_getfd":       {438, 438},
	"pivot_root":        {155, 41},
	"process_vm_readv":  {310, 270},
	"process_vm_writev": {311, 271},
	"ptrace":            {101, 117},
	"quotactl":          {179, 60},
	"quotactl_fd":       {443, 443},
	"reboot":            {169, 142},
	"request_key":       {249, 218},
	"semget":            {64, 190},
	"setns":             {308, 268},
	"settimeofday":      {164, 170},
	"shmget":            {29, 194},
	"socket":            {41, 198},
	"socketpair":        {53, 199},
	"statmount":         {457, 457},
	"swapoff":           {168, 225},
	"swapon":            {167, 224},
	"syslog":            {103, 116},
	"umount2":           {166, 39},
	"unshare":           {272, 97},
	"userfaultfd":       {323, 282},
}
