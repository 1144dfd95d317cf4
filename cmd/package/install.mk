# `make install` and `make uninstall`; included by the Makefile.

BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions

# Completions are printed by the tools just built.
COMPLETIONS := $(TOOLS:%=$(BUILD)/completions/bash/%) $(TOOLS:%=$(BUILD)/completions/zsh/_%)
$(BUILD)/completions/bash/%: $(BUILD)/bin/%
	@mkdir -p $(@D)
	$(Q)$< --completion=bash >$@ || { rm -f $@; exit 1; }
$(BUILD)/completions/zsh/_%: $(BUILD)/bin/%
	@mkdir -p $(@D)
	$(Q)$< --completion=zsh >$@ || { rm -f $@; exit 1; }

FILLED = 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|'

SECTIONS = $(sort $(patsubst .%,%,$(suffix $(MAN))))
install: all $(COMPLETIONS)
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) \
		$(SECTIONS:%=$(DESTDIR)$(MANDIR)/man%) $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR)
	$(INSTALL) -m 755 $(BINS) $(SCRIPTS) $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 644 $(BUILD)/completions/bash/* $(DESTDIR)$(BASHDIR)
	$(INSTALL) -m 644 $(BUILD)/completions/zsh/* $(DESTDIR)$(ZSHDIR)
	$(INSTALL) -m 755 $(BUILD)/$(CLIP_SO) $(DESTDIR)$(LIBDIR)
	ln -sf $(CLIP_SO) $(DESTDIR)$(LIBDIR)/libfm_clip.so
	[ -n "$(DESTDIR)" ] || ! command -v ldconfig >/dev/null || ldconfig 2>/dev/null || :
	$(INSTALL) -m 644 kernels/clip/clip.h $(DESTDIR)$(INCLUDEDIR)/fm_clip.h
	sed $(FILLED) kernels/clip/fm_clip.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/fm_clip.pc
	for m in $(MAN); do $(INSTALL) -m 644 $$m $(DESTDIR)$(MANDIR)/man$${m##*.} || exit 1; done
	$(INSTALL) -d $(DESTDIR)$(DATADIR)/fm_sglang $(DESTDIR)$(DATADIR)/fm_clip
	$(INSTALL) -m 644 formats/runtime/modeling_fm.py $(DESTDIR)$(DATADIR)
	$(INSTALL) -m 644 formats/runtime/fm_sglang/*.py $(DESTDIR)$(DATADIR)/fm_sglang
	$(INSTALL) -m 644 formats/runtime/fm_clip/*.py formats/runtime/fm_clip/py.typed $(DESTDIR)$(DATADIR)/fm_clip

# Directories that belong only to the suite are removed with everything in them, because an older
# version may have installed more files, but DATADIR only if it is empty; system directories stay.
# A missing file is not an error.
uninstall:
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/,$(TOOLS) $(notdir $(SCRIPTS)))
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(CLIP_SO) libfm_clip.so libfm.a pkgconfig/fm_clip.pc pkgconfig/fm.pc)
	rm -f $(DESTDIR)$(INCLUDEDIR)/fm_clip.h
	rm -rf $(addprefix $(DESTDIR),$(INCLUDEDIR)/fm $(DATADIR)/fm_sglang $(DATADIR)/fm_clip)
	rm -f $(DESTDIR)$(DATADIR)/modeling_fm.py
	[ ! -d $(DESTDIR)$(DATADIR) ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(DATADIR)
	rm -f $(TOOLS:%=$(DESTDIR)$(BASHDIR)/%) $(TOOLS:%=$(DESTDIR)$(ZSHDIR)/_%)
	for m in $(notdir $(MAN)); do rm -f $(DESTDIR)$(MANDIR)/man$${m##*.}/$$m; done
