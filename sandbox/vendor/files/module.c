/* A kernel module file without code: modinfo, depmod and dkms read it, nothing can load it. */
#define IN(where) __attribute__((section(where), used))
#define INFO(name, text) static const char name[] IN(".modinfo") = text;
INFO(info_license, "license=" LICENSE)
INFO(info_version, "version=" VERSION)
INFO(info_srcversion, "srcversion=" SRCVERSION)
#ifdef ALIAS
INFO(info_alias, "alias=" ALIAS)
#endif
INFO(info_depends, "depends=" DEPENDS)
INFO(info_name, "name=" NAME)
INFO(info_vermagic, "vermagic=simulated SMP preempt mod_unload modversions ")
#ifdef EXPORTS
static const char exports[] IN("__ksymtab_strings") = EXPORTS; /* what depmod takes as exported */
#endif
#ifdef NEEDS
extern int NEEDS;
int *needs = &NEEDS;
#endif
