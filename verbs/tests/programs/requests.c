/* Requests: in lists, put together call by call, with windows, and of datagrams. */

#include "laws.h"

void lists_of_requests(void)
{
	struct ibv_sge sges[2] = { { (uintptr_t)"hel", 3, 0 }, { (uintptr_t)"lo", 3, 0 } };
	struct ibv_send_wr *bad, wrs[2] = { 0 };
	receive(1);
	wrs[0].wr_id = 7;
	wrs[0].next = &wrs[1];
	wrs[0].sg_list = sges;
	wrs[0].num_sge = 2;
	wrs[0].opcode = IBV_WR_SEND_WITH_IMM;
	wrs[0].send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	wrs[0].imm_data = 0x01020304;
	wrs[1] = wrs[0];
	wrs[1].next = NULL;
	wrs[1].num_sge = 17;
	wrs[1].send_flags = 0;
	/* The first one is posted, and the second is named. */
	LAW(ibv_post_send(left, wrs, &bad) == EINVAL && bad == &wrs[1]);
	for (int n = 0; n < 2; n++) {
		struct ibv_wc wc = completion();
		LAW(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			LAW(wc.wr_id == 7 && wc.qp_num == left->qp_num);
			continue;
		}
		LAW(wc.opcode == IBV_WC_RECV && wc.wr_id == 1 && wc.byte_len == 6);
		LAW(wc.imm_data == 0x01020304 && wc.wc_flags == IBV_WC_WITH_IMM);
	}
	LAW(strcmp(memory + 2048, "hello") == 0);
}

void requests_put_together(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(left);
	LAW(qp);
	receive(2);
	memset(memory, 0, 2048);
	strcpy(memory + 512, "more");
	ibv_wr_start(qp);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + 1024);
	ibv_wr_set_inline_data(qp, "data", 5);
	qp->wr_id = 4;
	ibv_wr_atomic_fetch_add(qp, mr->rkey, (uintptr_t)memory + 1536, 5);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
	qp->wr_id = 5;
	ibv_wr_send_imm(qp, 0x05060708);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory + 512, 5);
	LAW(ibv_wr_complete(qp) == 0);
	struct ibv_device_attr_ex device;
	LAW(ibv_query_device_ex(context, NULL, &device) == 0);
	uint64_t mask = device.completion_timestamp_mask, before = 0;
	LAW(mask == (1 << 24) - 1 && device.hca_core_clock == 1000);
	int sends = 0, receives = 0;
	while (sends < 3 || receives < 1) {
		struct ibv_poll_cq_attr attr = { 0 };
		int found = ibv_start_poll(cq_ex, &attr);
		LAW(found == 0 || found == ENOENT);
		if (found == ENOENT) {
			usleep(1000);
			continue;
		}
		do {
			LAW(cq_ex->status == IBV_WC_SUCCESS);
			uint64_t at = ibv_wc_read_completion_ts(cq_ex);
			/* They all came within a second, one after the other. */
			LAW(at <= mask && (sends + receives == 0 || ((at - before) & mask) < 1000000));
			before = at;
			if (ibv_wc_read_opcode(cq_ex) == IBV_WC_RECV) {
				LAW(ibv_wc_read_imm_data(cq_ex) == 0x05060708);
				LAW(ibv_wc_read_byte_len(cq_ex) == 5 && cq_ex->wr_id == 2);
				receives++;
			} else {
				LAW((int)cq_ex->wr_id == 3 + sends++);
			}
		} while ((found = ibv_next_poll(cq_ex)) == 0);
		LAW(found == ENOENT);
		ibv_end_poll(cq_ex);
	}
	LAW(strcmp(memory + 1024, "data") == 0 && strcmp(memory + 2048, "more") == 0);
	LAW(*(uint64_t *)(memory + 1536) == 5);
	/* What is refused posts nothing. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, NULL, 1, 1);
	LAW(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_abort(qp);
}

void windows(void)
{
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	LAW(window);
	struct ibv_mw_bind bind = {
		.wr_id = 11,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)memory + 1024, 64, IBV_ACCESS_REMOTE_WRITE },
	};
	uint32_t before = window->rkey;
	LAW(ibv_bind_mw(right, window, &bind) == 0 && window->rkey != before);
	struct ibv_wc wc = completion();
	LAW(wc.wr_id == 11 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
	LAW(ibv_dereg_mr(mr) == EBUSY);
	struct ibv_sge sge = { (uintptr_t)"window", 7, 0 };
	struct ibv_send_wr *bad, wr = { .wr_id = 12, .opcode = IBV_WR_RDMA_WRITE };
	wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 1024;
	wr.wr.rdma.rkey = window->rkey;
	LAW(ibv_post_send(left, &wr, &bad) == 0);
	wc = completion();
	LAW(wc.wr_id == 12 && wc.status == IBV_WC_SUCCESS);
	LAW(strcmp(memory + 1024, "window") == 0);
	LAW(ibv_dealloc_mw(window) == 0);
}

static struct ibv_qp *make_ud(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	LAW(qp && !ibv_qp_to_qp_ex(qp));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 77 };
	LAW(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					     IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	LAW(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	LAW(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	return qp;
}

/* The 40 bytes say that a datagram came to that GID, once `sl` has said whose header they hold. */
static void came_to(const union ibv_gid *to, uint8_t sl, const char *header)
{
	enum { IPV6 = 1, IPV4 = 2, MAPPED = 12 };
	if (memcmp(to->raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", MAPPED) == 0)
		LAW(sl == IPV4 && memcmp(to->raw + MAPPED, header + 36, 4) == 0);
	else
		LAW(sl == IPV6 && memcmp(to->raw, header + 24, 16) == 0);
}

/* A datagram from one QP to the other; gives what the receiver is told. */
static struct ibv_wc datagram(struct ibv_qp *from, struct ibv_qp *to, struct ibv_ah *ah)
{
	struct ibv_sge sge = { (uintptr_t)memory + 2048, 40 + 1024, mr->lkey };
	struct ibv_recv_wr *bad_recv, recv = { .sg_list = &sge, .num_sge = 1 };
	LAW(ibv_post_recv(to, &recv, &bad_recv) == 0);
	struct ibv_sge out = { (uintptr_t)memory, 1024, mr->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .sg_list = &out, .num_sge = 1 };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = to->qp_num;
	wr.wr.ud.remote_qkey = 77;
	LAW(ibv_post_send(from, &wr, &bad) == 0);
	struct ibv_wc wc = completion();
	LAW(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	LAW(wc.byte_len == 40 + 1024 && wc.wc_flags == IBV_WC_GRH);
	came_to(&gid, wc.sl, memory + 2048);
	LAW(wc.src_qp == from->qp_num && memcmp(memory, memory + 2088, 1024) == 0);
	return wc;
}

void datagrams(void)
{
	struct ibv_qp *one = make_ud(), *two = make_ud();
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	struct ibv_ah *there = ibv_create_ah(pd, &attr);
	LAW(there);
	attr.port_num = 2;
	LAW(!ibv_create_ah(pd, &attr) && errno == EINVAL);
	struct ibv_wc wc = datagram(one, two, there);
	struct ibv_grh *grh = (struct ibv_grh *)(memory + 2048);
	LAW(ibv_init_ah_from_wc(context, 1, &wc, grh, &attr) == 0 && attr.sl == 0);
	LAW(memcmp(&attr.grh.dgid, &gid, sizeof(gid)) == 0);
	struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, grh, 1);
	LAW(back);
	datagram(two, one, back);
	LAW(ibv_attach_mcast(one, &gid, 0) == EOPNOTSUPP);
	LAW(ibv_destroy_ah(there) == 0 && ibv_destroy_ah(back) == 0);
	LAW(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0);
}
