# What `make install` puts where, and `make uninstall` takes away again; a part of the Makefile.

SECTIONS = $(sort $(patsubst .%,%,$(suffix $(MAN))))
install: all
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) \
		$(SECTIONS:%=$(DESTDIR)$(MANDIR)/man%)
	$(INSTALL) -m 755 $(BINS) $(SCRIPTS) $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 755 $(BUILD)/$(CLIP_SO) $(DESTDIR)$(LIBDIR)
	ln -sf $(CLIP_SO) $(DESTDIR)$(LIBDIR)/libfm_clip.so
	$(INSTALL) -m 644 kernels/clip/clip.h $(DESTDIR)$(INCLUDEDIR)/fm_clip.h
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' \
		kernels/clip/fm_clip.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/fm_clip.pc
	for m in $(MAN); do $(INSTALL) -m 644 $$m $(DESTDIR)$(MANDIR)/man$${m##*.}; done
	$(INSTALL) -d $(DESTDIR)$(DATADIR)/fm_sglang
	$(INSTALL) -m 644 formats/runtime/modeling_fm.py formats/runtime/torch_experts.py $(DESTDIR)$(DATADIR)
	$(INSTALL) -m 644 formats/runtime/fm_sglang/*.py $(DESTDIR)$(DATADIR)/fm_sglang
uninstall:
	cd $(DESTDIR)$(BINDIR) && rm -f $(TOOLS) $(notdir $(SCRIPTS))
	cd $(DESTDIR)$(LIBDIR) && rm -f $(CLIP_SO) libfm_clip.so pkgconfig/fm_clip.pc
	rm -f $(DESTDIR)$(INCLUDEDIR)/fm_clip.h
	rm -rf $(DESTDIR)$(DATADIR)/fm_sglang $(DESTDIR)$(DATADIR)/modeling_fm.py $(DESTDIR)$(DATADIR)/torch_experts.py
	for m in $(notdir $(MAN)); do rm -f $(DESTDIR)$(MANDIR)/man$${m##*.}/$$m; done
