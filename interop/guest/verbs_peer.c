/*
 * A peer for interoperability tests: does on libibverbs what it is told over TCP, a line at a time.
 *
 *   verbs_peer PORT
 *
 * Each connection is a session of its own, with its own device, QP and buffer. A command is a line of words;
 * so is the answer: "ok ..." or "error ...". Numbers are in any base of strtoull(3), GIDs are 32 hex
 * digits. QPs of a session share one completion queue and one buffer of SIZE bytes.
 *
 *   open KIND SIZE DEPTH ACCESS FAMILY QKEY  rc, uc or ud; 4 or 6 -> ok QPN GID ADDRESS RKEY
 *   connect QPN GID RQ_PSN SQ_PSN MTU TIMEOUT RETRY RNR_RETRY MIN_RNR READS
 *   ready QKEY SQ_PSN                  the same for UD
 *   address QPN GID QKEY               where UD sends go
 *   fill OFFSET LENGTH SEED | check OFFSET LENGTH SEED   -> ok, or "bad INDEX"
 *   put OFFSET VALUE | get OFFSET      a native 64-bit word
 *   recv WR_ID OFFSET LENGTH
 *   post WR_ID OP OFFSET LENGTH REMOTE RKEY IMM COMPARE SWAP FLAGS
 *   bind WR_ID OFFSET LENGTH ACCESS    a type 2 memory window over the buffer -> ok RKEY
 *   wait MS                            -> ok WR_ID STATUS OPCODE LENGTH FLAGS IMM SRC_QP, or "none"
 *   state                              -> ok STATE of the QP, enum ibv_qp_state
 *   close
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORDS = 16, LINE = 512, PORT_NUMBER = 1, GID_BYTES = 16 };

struct session {
	FILE *out;
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	unsigned char *buffer;
	uint64_t size;
	int access;
	uint32_t remote_qpn, remote_qkey;
	int gid_index;
};

static void say(struct session *s, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(s->out, format, arguments);
	va_end(arguments);
	fputc('\n', s->out);
	fflush(s->out);
}

static void fail(struct session *s, const char *what, int error)
{
	say(s, "error %s: %s", what, strerror(error));
}

static uint64_t number(const char *word)
{
	return strtoull(word, NULL, 0);
}

static int parse_gid(const char *word, union ibv_gid *gid)
{
	for (int i = 0; i < GID_BYTES; i++) {
		unsigned int byte;

		if (sscanf(word + 2 * i, "%2x", &byte) != 1)
			return -1;
		gid->raw[i] = byte;
	}
	return 0;
}

static void print_gid(const union ibv_gid *gid, char *out)
{
	for (int i = 0; i < GID_BYTES; i++)
		sprintf(out + 2 * i, "%02x", gid->raw[i]);
}

/* Both ends fill and compare by this: every byte tells its place and the seed. */
static unsigned char pattern(uint64_t seed, uint64_t index)
{
	uint64_t x = (seed + (index >> 3)) * 0x9e3779b97f4a7c15ULL;

	return (x ^ x >> 29) >> (8 * (index & 7));
}

static int in_buffer(struct session *s, uint64_t offset, uint64_t length)
{
	return s->buffer && offset <= s->size && length <= s->size - offset;
}

/* The GID that stands for an IPv4 address, else the first: what peers in a plain network reach. */
static int choose_gid(struct session *s, int family, union ibv_gid *gid)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };

	for (int i = 0; i < 16; i++) {
		int is_v4, local;

		if (ibv_query_gid(s->device, PORT_NUMBER, i, gid))
			continue;
		is_v4 = !memcmp(gid->raw, mapped, sizeof mapped);
		local = gid->raw[0] == 0xfe && gid->raw[1] == 0x80;
		if ((gid->raw[0] || is_v4) && !local && is_v4 == (family == 4))
			return i;
	}
	return -1;
}

static void do_open(struct session *s, char **word)
{
	static const struct { const char *name; enum ibv_qp_type type; } kinds[] = {
		{ "rc", IBV_QPT_RC }, { "uc", IBV_QPT_UC }, { "ud", IBV_QPT_UD },
	};
	struct ibv_qp_init_attr init = { .cap = { .max_send_sge = 2, .max_recv_sge = 2 } };
	struct ibv_device **list = ibv_get_device_list(NULL);
	union ibv_gid gid;
	char text[2 * GID_BYTES + 1];

	if (!list || !list[0])
		return fail(s, "no device", ENODEV);
	s->device = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	if (!s->device)
		return fail(s, "ibv_open_device", errno);
	s->size = number(word[2]);
	s->access = number(word[4]);
	s->gid_index = choose_gid(s, number(word[5]), &gid);
	if (s->gid_index < 0)
		return fail(s, "no GID of that family", ENOENT);
	if (posix_memalign((void **)&s->buffer, 4096, s->size))
		return fail(s, "posix_memalign", ENOMEM);
	memset(s->buffer, 0, s->size);
	init.qp_type = IBV_QPT_RC;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(word[1], kinds[i].name))
			init.qp_type = kinds[i].type;
	init.cap.max_send_wr = init.cap.max_recv_wr = number(word[3]);
	s->pd = ibv_alloc_pd(s->device);
	s->cq = ibv_create_cq(s->device, 2 * init.cap.max_send_wr + 16, NULL, NULL, 0);
	if (!s->pd || !s->cq)
		return fail(s, "ibv_alloc_pd or ibv_create_cq", errno);
	s->mr = ibv_reg_mr(s->pd, s->buffer, s->size, s->access);
	if (!s->mr)
		return fail(s, "ibv_reg_mr", errno);
	init.send_cq = init.recv_cq = s->cq;
	s->qp = ibv_create_qp(s->pd, &init);
	if (!s->qp)
		return fail(s, "ibv_create_qp", errno);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT_NUMBER };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (init.qp_type == IBV_QPT_UD) {
		attr.qkey = number(word[6]);
		mask |= IBV_QP_QKEY;
	} else {
		/* What a region may be used for beyond the rights of a QP is refused there. */
		attr.qp_access_flags = s->access & ~IBV_ACCESS_MW_BIND;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	int error = ibv_modify_qp(s->qp, &attr, mask);

	if (error)
		return fail(s, "ibv_modify_qp to INIT", error);
	print_gid(&gid, text);
	say(s, "ok %u %s %llu %u", s->qp->qp_num, text, (unsigned long long)(uintptr_t)s->buffer,
	    s->mr->rkey);
}

static void do_connect(struct session *s, char **word)
{
	int reliable = s->qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = number(word[1]),
		.rq_psn = number(word[3]),
		.path_mtu = number(word[5]),
		.ah_attr = { .is_global = 1, .port_num = PORT_NUMBER,
			     .grh = { .hop_limit = 64, .sgid_index = s->gid_index } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int error;

	if (parse_gid(word[2], &attr.ah_attr.grh.dgid))
		return fail(s, "GID", EINVAL);
	if (reliable) {
		attr.min_rnr_timer = number(word[9]);
		attr.max_dest_rd_atomic = number(word[10]);
		mask |= IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC;
	}
	error = ibv_modify_qp(s->qp, &attr, mask);
	if (error)
		return fail(s, "ibv_modify_qp to RTR", error);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = number(word[4]);
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (reliable) {
		attr.timeout = number(word[6]);
		attr.retry_cnt = number(word[7]);
		attr.rnr_retry = number(word[8]);
		attr.max_rd_atomic = number(word[10]);
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	error = ibv_modify_qp(s->qp, &attr, mask);
	if (error)
		return fail(s, "ibv_modify_qp to RTS", error);
	say(s, "ok");
}

static void do_ready(struct session *s, char **word)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int error = ibv_modify_qp(s->qp, &attr, IBV_QP_STATE);

	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = number(word[1]);
	if (!error)
		error = ibv_modify_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (error)
		return fail(s, "ibv_modify_qp to RTS", error);
	say(s, "ok");
}

static void do_address(struct session *s, char **word)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT_NUMBER,
				    .grh = { .hop_limit = 64, .sgid_index = s->gid_index } };

	if (parse_gid(word[2], &attr.grh.dgid))
		return fail(s, "GID", EINVAL);
	s->remote_qpn = number(word[1]);
	s->remote_qkey = number(word[3]);
	s->ah = ibv_create_ah(s->pd, &attr);
	if (!s->ah)
		return fail(s, "ibv_create_ah", errno);
	say(s, "ok");
}

static void do_fill(struct session *s, char **word)
{
	uint64_t offset = number(word[1]), length = number(word[2]), seed = number(word[3]);

	if (!in_buffer(s, offset, length))
		return fail(s, "range", ERANGE);
	for (uint64_t i = 0; i < length; i++)
		s->buffer[offset + i] = pattern(seed, i);
	say(s, "ok");
}

static void do_check(struct session *s, char **word)
{
	uint64_t offset = number(word[1]), length = number(word[2]), seed = number(word[3]);

	if (!in_buffer(s, offset, length))
		return fail(s, "range", ERANGE);
	for (uint64_t i = 0; i < length; i++)
		if (s->buffer[offset + i] != pattern(seed, i))
			return say(s, "bad %llu", (unsigned long long)i);
	say(s, "ok");
}

static void do_word(struct session *s, char **word)
{
	uint64_t offset = number(word[1]), value;

	if (!in_buffer(s, offset, sizeof value))
		return fail(s, "range", ERANGE);
	if (!strcmp(word[0], "put")) {
		value = number(word[2]);
		memcpy(s->buffer + offset, &value, sizeof value);
	}
	memcpy(&value, s->buffer + offset, sizeof value);
	say(s, "ok %llu", (unsigned long long)value);
}

static void do_recv(struct session *s, char **word)
{
	struct ibv_sge sge = { .addr = (uintptr_t)s->buffer + number(word[2]),
			       .length = number(word[3]), .lkey = s->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = number(word[1]), .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(s->qp, &wr, &bad);

	if (error)
		return fail(s, "ibv_post_recv", error);
	say(s, "ok");
}

static void do_post(struct session *s, char **word)
{
	static const struct { const char *name; enum ibv_wr_opcode opcode; } ops[] = {
		{ "send", IBV_WR_SEND }, { "send_imm", IBV_WR_SEND_WITH_IMM },
		{ "send_inv", IBV_WR_SEND_WITH_INV }, { "write", IBV_WR_RDMA_WRITE },
		{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "read", IBV_WR_RDMA_READ },
		{ "cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
		{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD },
	};
	struct ibv_sge sge = { .addr = (uintptr_t)s->buffer + number(word[3]),
			       .length = number(word[4]), .lkey = s->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = number(word[1]), .sg_list = &sge, .num_sge = 1 }, *bad;
	int error;

	wr.send_flags = IBV_SEND_SIGNALED | number(word[10]);
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (!strcmp(word[2], ops[i].name))
			wr.opcode = ops[i].opcode;
	if (wr.opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = number(word[7]);
	else
		wr.imm_data = htonl(number(word[7]));
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = number(word[5]);
		wr.wr.atomic.rkey = number(word[6]);
		wr.wr.atomic.compare_add = number(word[8]);
		wr.wr.atomic.swap = number(word[9]);
	} else if (s->qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = s->ah;
		wr.wr.ud.remote_qpn = s->remote_qpn;
		wr.wr.ud.remote_qkey = s->remote_qkey;
	} else {
		wr.wr.rdma.remote_addr = number(word[5]);
		wr.wr.rdma.rkey = number(word[6]);
	}
	error = ibv_post_send(s->qp, &wr, &bad);
	if (error)
		return fail(s, "ibv_post_send", error);
	say(s, "ok");
}

static void do_bind(struct session *s, char **word)
{
	struct ibv_send_wr wr = { .wr_id = number(word[1]), .opcode = IBV_WR_BIND_MW,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	int error;

	s->mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_2);
	if (!s->mw)
		return fail(s, "ibv_alloc_mw", errno);
	wr.bind_mw.mw = s->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(s->mw->rkey);
	wr.bind_mw.bind_info.mr = s->mr;
	wr.bind_mw.bind_info.addr = (uintptr_t)s->buffer + number(word[2]);
	wr.bind_mw.bind_info.length = number(word[3]);
	wr.bind_mw.bind_info.mw_access_flags = number(word[4]);
	error = ibv_post_send(s->qp, &wr, &bad);
	if (error)
		return fail(s, "ibv_post_send", error);
	say(s, "ok %u", wr.bind_mw.rkey);
}

static uint64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

static void do_wait(struct session *s, char **word)
{
	uint64_t until = milliseconds() + number(word[1]);
	struct ibv_wc wc;

	do {
		int count = ibv_poll_cq(s->cq, 1, &wc);

		if (count < 0)
			return fail(s, "ibv_poll_cq", EIO);
		if (count == 1) {
			uint32_t extra = wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey
								      : ntohl(wc.imm_data);

			say(s, "ok %llu %d %d %u %u %u %u", (unsigned long long)wc.wr_id, wc.status,
			    wc.opcode, wc.byte_len, wc.wc_flags, extra, wc.src_qp);
			return;
		}
		/* The protocol runs on this one CPU too. */
		usleep(200);
	} while (milliseconds() < until);
	say(s, "none");
}

static void do_state(struct session *s, char **word)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	int error = ibv_query_qp(s->qp, &attr, IBV_QP_STATE, &init);

	(void)word;
	if (error)
		return fail(s, "ibv_query_qp", error);
	say(s, "ok %d", attr.qp_state);
}

static void end(struct session *s)
{
	if (s->qp)
		ibv_destroy_qp(s->qp);
	if (s->mw)
		ibv_dealloc_mw(s->mw);
	if (s->ah)
		ibv_destroy_ah(s->ah);
	if (s->mr)
		ibv_dereg_mr(s->mr);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	if (s->pd)
		ibv_dealloc_pd(s->pd);
	if (s->device)
		ibv_close_device(s->device);
	free(s->buffer);
}

static void serve(int socket)
{
	static const struct {
		const char *name;
		int words;
		void (*run)(struct session *s, char **word);
	} commands[] = {
		{ "open", 7, do_open },   { "connect", 11, do_connect }, { "ready", 2, do_ready },
		{ "address", 4, do_address }, { "fill", 4, do_fill },    { "check", 4, do_check },
		{ "put", 3, do_word },    { "get", 2, do_word },         { "recv", 4, do_recv },
		{ "post", 11, do_post },  { "bind", 5, do_bind },        { "wait", 2, do_wait },
		{ "state", 1, do_state },
	};
	enum { COMMANDS = sizeof commands / sizeof *commands };
	struct session s = { .out = fdopen(dup(socket), "w") };
	FILE *in = fdopen(socket, "r");
	char line[LINE];

	while (in && s.out && fgets(line, sizeof line, in)) {
		char *word[MAX_WORDS], *rest = line;
		int count = 0, known = 0;

		while (count < MAX_WORDS && (word[count] = strtok_r(rest, " \n", &rest)))
			count++;
		if (!count)
			continue;
		if (!strcmp(word[0], "close"))
			break;
		for (int i = 0; i < COMMANDS; i++)
			if (!strcmp(word[0], commands[i].name) && count == commands[i].words) {
				known = 1;
				if (s.qp || !i)
					commands[i].run(&s, word);
				else
					fail(&s, "not open", EBADFD);
			}
		if (!known)
			fail(&s, line, EINVAL);
	}
	end(&s);
	if (s.out)
		say(&s, "ok");
}

int main(int argc, char **argv)
{
	int listener = socket(AF_INET6, SOCK_STREAM, 0), yes = 1, no = 0;
	struct sockaddr_in6 here = { .sin6_family = AF_INET6 };

	if (argc != 2) {
		fprintf(stderr, "usage: verbs_peer PORT\n");
		return 2;
	}
	here.sin6_port = htons(atoi(argv[1]));
	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
	if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 16)) {
		perror("verbs_peer");
		return 1;
	}
	for (;;) {
		int peer = accept(listener, NULL, NULL);

		if (peer < 0)
			continue;
		setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
		if (!fork()) {
			close(listener);
			serve(peer);
			exit(0);
		}
		close(peer);
	}
}
